//! Reads of one kind's objects, those of a moment together: a refresh of two hundred pools lists them once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::core::DynamicObject;

use super::CustomKind;
use crate::aws::reads::together::{Keys, Together};
use crate::report::{Failure, Kind};
use crate::session::Session;

type Asked = Together<String, DynamicObject>;

/// The objects of one kind, as a session has read them. Another session, which every run begins with, knows nothing of it.
#[derive(Default)]
pub struct Reads(Mutex<Option<(Arc<Session>, Arc<Asked>)>>);

impl Reads {
    /// Looks an object up; nothing where it or its CRD is gone.
    pub async fn find(
        &self,
        session: &Arc<Session>,
        kind: CustomKind,
        name: &str,
    ) -> Result<Option<DynamicObject>, Failure> {
        let asked = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.as_ref().filter(|(of, _)| Arc::ptr_eq(of, session)) {
                Some((_, asked)) => Arc::clone(asked),
                None => Arc::clone(&kept.insert((Arc::clone(session), Arc::new(asked(session, kind)))).1),
            }
        };
        Ok(asked.get([name.to_owned()]).await?.remove(name))
    }

    /// Forgets what was read, since something is written.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn asked(session: &Arc<Session>, kind: CustomKind) -> Asked {
    let session = Arc::clone(session);
    Together::new(move |names| ask(Arc::clone(&session), kind, names))
}

/// Reads one object, or lists all of the kind where another was asked for before or is asked for too; where listing is not allowed, reads one
/// after the other.
async fn ask(
    session: Arc<Session>,
    kind: CustomKind,
    names: Keys<String>,
) -> Result<BTreeMap<String, DynamicObject>, Failure> {
    let client = session.kube().await?;
    if names.all().count() > 1 {
        match kind.list(&client).await {
            Err(failure) if failure.kind == Kind::Denied => {}
            listed => return listed,
        }
    }
    let mut found = BTreeMap::new();
    for name in names.wanted {
        found.extend(kind.find(&client, &name).await?.map(|object| (name, object)));
    }
    Ok(found)
}
