//! Programmatic edges between the kernels of a graph that is being captured, by the CUDA driver's own functions: CubeCL
//! has none for them.

use std::ptr::{null, null_mut};

use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::runtime::Runtime;
use cubecl_server::stream::WriteScoped;
use cudarc::driver::sys::{
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphNode,
    CUgraphNodeType, CUresult, CUstream, CUstreamCaptureStatus, cuGraphAddDependencies_v2, cuGraphGetEdges_v2,
    cuGraphNodeGetType, cuGraphRemoveDependencies_v2, cuStreamGetCaptureInfo_v3,
};

use crate::Rejected;

const KERNEL: &str = "overlap";
type Server = <CudaRuntime as Runtime>::Server;

/// Makes every edge between two kernels of the graph that this thread is capturing on `client` a programmatic one.
/// Returns their number.
///
/// Every kernel in the graph must keep the contract of the [module](super).
///
/// # Errors
/// [`Rejected`] where nothing is being captured or the driver (12.3 or later) refuses; the capture is then best stopped and
/// its graph dropped.
pub fn relax_edges(client: &Client) -> Result<usize, Rejected> {
    let service = client.service_id();
    Rejected::unless(service.service == std::any::TypeId::of::<Server>(), KERNEL, || "not a CUDA device".into())?;
    let stream = StreamId::current();
    DeviceHandle::<Server>::new(service.device)
        .submit_blocking(move |server| {
            let stream = server.write_streams().try_stream_mut(&stream).map(|stream| stream.sys);
            // SAFETY: the stream is CubeCL's own, used on the thread that owns it.
            stream.map(|stream| unsafe { relax(stream) })
        })
        .map_err(|e| refused(&format!("the device's thread: {e:?}")))?
        .ok_or_else(|| refused("this thread has no stream on the device"))?
}

/// # Safety
/// `stream` is a live stream of the current context.
unsafe fn relax(stream: CUstream) -> Result<usize, Rejected> {
    let mut graph: CUgraph = null_mut();
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges_out, mut count) = (null(), null(), 0);
    // SAFETY: all pointers are to locals. While a stream captures, its graph may be changed in every way except the
    // removal of nodes.
    unsafe {
        let info = cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            null_mut(),
            &mut graph,
            &mut nodes,
            &mut edges_out,
            &mut count,
        );
        checked("cuStreamGetCaptureInfo", info)?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE || graph.is_null() {
            return Err(refused("nothing is being captured"));
        }
        let mut len = 0;
        checked("cuGraphGetEdges", cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut len))?;
        if len == 0 {
            return Ok(0);
        }
        let mut from: Vec<CUgraphNode> = vec![null_mut(); len];
        let mut to = from.clone();
        let mut data = vec![CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] }; len];
        let got = cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut len);
        checked("cuGraphGetEdges", got)?;
        let mut relaxed = 0;
        for ((from, to), old) in from.iter().zip(&to).zip(&data) {
            if !(is_kernel(*from)? && is_kernel(*to)?) {
                continue;
            }
            let new = CUgraphEdgeData {
                from_port: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
                to_port: 0,
                type_: CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
                reserved: [0; 5],
            };
            checked("cuGraphRemoveDependencies", cuGraphRemoveDependencies_v2(graph, from, to, old, 1))?;
            checked("cuGraphAddDependencies", cuGraphAddDependencies_v2(graph, from, to, &new, 1))?;
            relaxed += 1;
        }
        Ok(relaxed)
    }
}

/// # Safety
/// `node` belongs to a live graph.
unsafe fn is_kernel(node: CUgraphNode) -> Result<bool, Rejected> {
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: see above.
    checked("cuGraphNodeGetType", unsafe { cuGraphNodeGetType(node, &mut kind) })?;
    Ok(kind == CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL)
}

fn checked(what: &str, result: CUresult) -> Result<(), Rejected> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(refused(&format!("{what}: {other:?}"))),
    }
}

fn refused(reason: &str) -> Rejected {
    Rejected::new(KERNEL, reason.to_owned())
}
