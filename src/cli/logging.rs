//! Logs on stderr, and one log line that is an error: CubeCL reports a panic on its device thread as `Task failed` and
//! carries on with whatever the buffers hold.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt as lines};

const FATAL: &str = "Task failed";
static FAILED: AtomicBool = AtomicBool::new(false);

/// Starts logging; `GEMMA_LOG` sets the level (`warn` where it is absent).
pub fn init() {
    let filter = EnvFilter::try_from_env("GEMMA_LOG").unwrap_or_else(|_| "warn".into());
    let printed = lines::layer().with_writer(std::io::stderr).with_filter(filter);
    tracing_subscriber::registry().with(printed).with(Watch).init();
}

/// Whether a computation on a device has failed behind our back.
pub fn task_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

struct Watch;

impl<S: Subscriber> Layer<S> for Watch {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Message);
    }
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").contains(FATAL) {
            FAILED.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_task_is_noticed_among_other_lines() {
        let subscriber = tracing_subscriber::registry().with(Watch);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("nothing of note");
            assert!(!task_failed());
            tracing::error!("Task failed: out of memory");
            assert!(task_failed());
        });
    }
}
