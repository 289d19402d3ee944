//! The instructions of a programmatic launch, which CubeCL has no name for.
//!
//! Each is a function for `#[cube]` code to call and, in the module of the same name, what the call becomes.

pub(super) fn wait() {}
pub(super) fn release() {}

pub(super) mod wait {
    use cubecl::ir::Scope;

    pub fn expand(scope: &Scope) {
        // The fence keeps earlier loads ahead of the wait: the assembler would ask for them after it.
        super::assembly(scope, "fence.acq_rel.cta;");
        super::assembly(scope, "griddepcontrol.wait;");
    }
}

pub(super) mod release {
    use cubecl::ir::Scope;

    pub fn expand(scope: &Scope) {
        super::assembly(scope, "griddepcontrol.launch_dependents;");
    }
}

/// One PTX instruction without operands, which no memory access crosses.
#[cfg(feature = "cuda")]
fn assembly(scope: &cubecl::ir::Scope, instruction: &str) {
    use pliron_llvm::ops::InlineAsmOp;
    use pliron_llvm::types::VoidType;
    let context = scope.ctx_mut();
    let nothing = VoidType::get(context).into();
    scope.register(&InlineAsmOp::new(context, nothing, vec![], instruction, "~{memory}", true));
}

#[cfg(not(feature = "cuda"))]
fn assembly(_: &cubecl::ir::Scope, _: &str) {
    unreachable!("only a CUDA device overlaps launches")
}
