//! Whose turn it is at which of the sandbox's AWS emulators: tests inject faults and count calls, so each has one of its own for a while.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Who is at the emulators, and who waits for it to become quiet.
struct Emulators {
    /// Those that nobody is at, by their place in the list.
    free: Vec<usize>,
    /// Tests that work while they have one.
    busy: usize,
    /// Tests that measure while they have one.
    quiet: usize,
    /// Tests that want to measure.
    hushing: usize,
}

static EMULATORS: OnceLock<Mutex<Emulators>> = OnceLock::new();
static CHANGED: Condvar = Condvar::new();

/// The emulator of the test that holds this; free again when it is dropped.
pub struct Turn {
    /// Its place in the list.
    pub place: usize,
    need: Need,
}

/// What a test needs of its emulator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Any will do.
    Any,
    /// The first, whose EKS stands for the sandbox's API server: what tests do there, they do one after the other.
    Cluster,
    /// Any, with nobody at the others but tests that need the same: these wait more than they work, and what measures seconds must not wait for
    /// others' work.
    Quiet,
}

impl Turn {
    /// Waits until one of `count` emulators is free that will do.
    pub fn take(count: usize, need: Need) -> Self {
        let new = || Mutex::new(Emulators { free: (0..count).collect(), busy: 0, quiet: 0, hushing: 0 });
        let mut all = locked(EMULATORS.get_or_init(new));
        all.hushing += usize::from(need == Need::Quiet);
        loop {
            if let Some(place) = all.best(need) {
                all.free.retain(|free| *free != place);
                all.hushing -= usize::from(need == Need::Quiet);
                *all.beside(need) += 1;
                return Self { place, need };
            }
            all = CHANGED.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Emulators {
    /// One that a test may have now.
    fn best(&self, need: Need) -> Option<usize> {
        // whoever wants quiet gets it, as soon as those are done that have begun
        let waits = match need {
            Need::Quiet => self.busy > 0,
            Need::Any | Need::Cluster => self.quiet + self.hushing > 0,
        };
        let mut free = self.free.iter().copied().filter(|_| !waits);
        match need {
            Need::Cluster => free.find(|place| *place == 0),
            // the first is kept for whoever needs it as long as there are others
            Need::Any | Need::Quiet => free.max(),
        }
    }

    /// How many are at it with a test.
    const fn beside(&mut self, need: Need) -> &mut usize {
        match need {
            Need::Quiet => &mut self.quiet,
            Need::Any | Need::Cluster => &mut self.busy,
        }
    }
}

fn locked(emulators: &'static Mutex<Emulators>) -> MutexGuard<'static, Emulators> {
    // A test that fails panics while it has its turn, never while the list is changed.
    emulators.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(emulators) = EMULATORS.get() else { return };
        let mut all = locked(emulators);
        all.free.push(self.place);
        *all.beside(self.need) -= 1;
        CHANGED.notify_all();
    }
}
