//! Capture of launches as graphs, and their replay; the same launches one by one where a runtime has no graphs.

use cubecl::client::{Client, Graph};

use super::plan::Launch;
use crate::{Error, Result};

/// Warm-up runs before a capture: kernels are compiled and pools filled by then.
const WARM_UPS: usize = 2;

/// A fixed sequence of launches.
pub(super) struct Sequence {
    launches: Vec<Launch>,
    graph: Option<Graph>,
}

impl Sequence {
    /// Launches that go out one by one.
    pub(super) fn eager(launches: Vec<Launch>) -> Self {
        Self { launches, graph: None }
    }

    /// Records the launches as a graph. Their buffers are written in the course of it.
    ///
    /// # Errors
    /// A launch that fails, or a runtime without graphs.
    pub(super) fn capture(&mut self, client: &Client) -> Result<()> {
        self.graph = Some(capture(client, &|| self.launches.iter().try_for_each(Launch::run))?);
        Ok(())
    }

    /// Whether a replay is one dispatch.
    pub(super) fn is_captured(&self) -> bool {
        self.graph.is_some()
    }

    pub(super) fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// Enqueues the sequence; does not wait for it.
    pub(super) fn run(&self) -> Result<()> {
        match &self.graph {
            // SAFETY: the launches, which own every buffer that the graph uses, live as long as the graph, and all use is
            // from the thread that captured it.
            Some(graph) => unsafe { graph.replay() }.map_err(|e| Error::Fused(format!("replaying the graph: {e}"))),
            None => self.launches.iter().try_for_each(Launch::run),
        }
    }
}

/// Captures what `launch` enqueues.
pub(super) fn capture(client: &Client, launch: &dyn Fn() -> Result<()>) -> Result<Graph> {
    let failed = |what: &str, e: &dyn std::fmt::Display| Error::Fused(format!("{what} the graph: {e}"));
    client.graph_prepare().map_err(|e| failed("preparing", &e))?;
    for _ in 0..WARM_UPS {
        launch()?;
    }
    cubecl::future::block_on(client.sync()).map_err(|e| failed("warming up", &e))?;
    client.start_capture().map_err(|e| failed("starting", &e))?;
    let launched = launch();
    #[cfg(feature = "cuda")]
    let launched = launched.and_then(|()| overlap(client));
    let graph = client.stop_capture().map_err(|e| failed("recording", &e))?;
    launched.map(|()| graph)
}

/// Lets each launch of the graph being captured begin before the one ahead has ended, where the device can.
#[cfg(feature = "cuda")]
fn overlap(client: &Client) -> Result<()> {
    if cube_kernels::Caps::of(client).overlaps {
        let edges = cube_kernels::overlap::relax_edges(client)?;
        tracing::info!("{edges} launches begin before the one ahead has ended");
    }
    Ok(())
}

/// Replays that are timed together.
const TIMED: usize = 20;

/// Microseconds that `launches` take as a graph of their own, median of three timings.
pub(super) fn time(client: &Client, launches: &[&Launch]) -> Result<f64> {
    let graph = capture(client, &|| launches.iter().try_for_each(|launch| launch.run()))?;
    let failed = |e: &dyn std::fmt::Display| Error::Fused(format!("timing: {e}"));
    let wait = || cubecl::future::block_on(client.sync()).map_err(|e| failed(&e));
    let mut times = Vec::new();
    for _ in 0..4 {
        let started = std::time::Instant::now();
        for _ in 0..TIMED {
            // SAFETY: the launches outlive this function, and no other thread uses their buffers.
            unsafe { graph.replay() }.map_err(|e| failed(&e))?;
        }
        wait()?;
        times.push(started.elapsed().as_secs_f64() * 1e6 / TIMED as f64);
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[1])
}
