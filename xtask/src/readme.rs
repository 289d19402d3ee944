//! The parts of README.md that are made from measurements and from the program itself.

use anyhow::{Context, Result, bail};

use crate::gemma::{self, Gemma};
use crate::shell::{output, root};
use crate::tables::read;
use crate::{bench, parity};

#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail if README.md is not up to date
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    gemma: gemma::Args,
}

pub fn run(args: &Args) -> Result<()> {
    let gemma = Gemma::new(&args.gemma)?;
    if args.check {
        return check(&gemma);
    }
    let made = make(&gemma)?.1;
    Ok(std::fs::write(root().join("README.md"), made)?)
}

/// Fails if `cargo xtask readme` would change README.md.
pub fn check(gemma: &Gemma) -> Result<()> {
    let (readme, made) = make(gemma)?;
    if let Some((old, new)) = readme.lines().zip(made.lines()).find(|(old, new)| old != new) {
        bail!("README.md is not up to date; run `cargo xtask readme`\n  has:       {old}\n  should be: {new}");
    }
    if readme != made {
        bail!("README.md is not up to date; run `cargo xtask readme`");
    }
    Ok(())
}

/// README.md as it is and as it should be.
fn make(gemma: &Gemma) -> Result<(String, String)> {
    let readme = std::fs::read_to_string(root().join("README.md"))?;
    let mut made = readme.clone();
    for (name, text) in [("parity", parity_block()?), ("speed", speed_block()?), ("help", help_block(gemma)?)] {
        made = replace(&made, name, &text)?;
    }
    Ok((readme, made))
}

fn parity_block() -> Result<String> {
    let rows: Vec<parity::Row> = read(parity::TABLE)?;
    let mut stamps: Vec<String> = rows.iter().map(|row| format!("{}: {}", row.device, row.stamp())).collect();
    stamps.sort();
    stamps.dedup();
    let made = if stamps.is_empty() {
        String::new()
    } else {
        format!("\nMade by `cargo xtask parity --write`. {}.\n", stamps.join("; "))
    };
    Ok(parity::table(&rows) + &made)
}

fn speed_block() -> Result<String> {
    Ok(bench::table(&read(bench::TABLE)?))
}

fn help_block(gemma: &Gemma) -> Result<String> {
    let mut text = String::new();
    for command in ["gemma", "gemma generate"] {
        let words: Vec<&str> = command.split(' ').skip(1).chain(["--help"]).collect();
        let help = output(gemma.command(&words))?;
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        text += &format!("```text\n$ {command} --help\n{}\n```\n", help.join("\n"));
    }
    Ok(text)
}

/// Puts `text` between the markers of `name`.
fn replace(readme: &str, name: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let parts = readme.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = parts.with_context(|| format!("README.md lacks the markers {} and {end}", begin.trim()))?;
    Ok(format!("{before}{begin}{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn replace_changes_only_what_is_between_the_markers() {
        let readme = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n";
        let made = replace(readme, "x", "new\n").unwrap();
        assert_eq!(made, "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n");
        assert_eq!(replace(&made, "x", "new\n").unwrap(), made);
        assert!(replace(readme, "y", "").is_err());
    }
}
