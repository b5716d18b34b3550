//! Progress of long steps: a spinner on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain log hears that a long step still runs.
const PLAIN_PERIOD: Duration = Duration::from_secs(30);

/// One long step; says how it went when it is told, or that it failed when it is dropped untold.
pub struct Step {
    name: String,
    begin: Instant,
    told: Instant,
    bar: Option<ProgressBar>,
    done: bool,
}

impl Step {
    /// Begins a step and says so.
    pub fn begin(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = ProgressBar::new_spinner().with_style(style).with_message(name.clone());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        if bar.is_none() {
            eprintln!("  ... {name}");
        }
        let now = Instant::now();
        Self { name, begin: now, told: now, bar, done: false }
    }

    /// Says what the step does at the moment; on a plain log only now and then.
    pub fn tell(&mut self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {what}", self.name)),
            None if self.told.elapsed() >= PLAIN_PERIOD => {
                self.told = Instant::now();
                eprintln!("  ... {} ({:.0} s): {what}", self.name, self.begin.elapsed().as_secs_f64());
            }
            None => {}
        }
    }

    /// Ends the step well and says how long it took.
    pub fn end(mut self) -> Duration {
        self.done = true;
        let took = self.begin.elapsed();
        self.close("ok", took);
        took
    }

    fn close(&self, how: &str, took: Duration) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("  {how:<6} {} ({:.1} s)", self.name, took.as_secs_f64());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.done {
            self.close("FAILED", self.begin.elapsed());
        }
    }
}
