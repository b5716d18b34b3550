//! A manifest that is taken apart field by field, so that what nobody took can be told.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::validate::Violation;
use super::{Converted, Refusal};

/// One object of a manifest, with what was found out about the manifest so far.
pub struct Fields {
    at: String,
    map: Map<String, Value>,
    taken: BTreeSet<String>,
    refusals: Vec<Refusal>,
    notes: Vec<String>,
}

impl Fields {
    pub fn root(manifest: &Value) -> Self {
        let map = manifest.as_object().cloned().unwrap_or_default();
        Self { at: String::new(), map, taken: BTreeSet::new(), refusals: Vec::new(), notes: Vec::new() }
    }

    /// Takes the version and the kind.
    pub fn header(&mut self) -> (String, String) {
        // what the API server adds says nothing about the nodes
        self.ignore(&["status"]);
        (self.get::<String>("apiVersion").unwrap_or_default(), self.get::<String>("kind").unwrap_or_default())
    }

    /// Takes the object's name; other metadata belong to the cluster that it came from.
    pub fn name(&mut self) -> Option<String> {
        self.taken.insert("metadata".to_owned());
        self.map.get("metadata")?.get("name")?.as_str().map(str::to_owned)
    }

    /// Takes a field; what does not have its type is refused.
    pub fn get<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        self.taken.insert(name.to_owned());
        let value = self.map.get(name).filter(|value| !value.is_null())?.clone();
        match serde_json::from_value(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(name, error.to_string());
                None
            }
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Passes over fields that mean nothing today.
    pub fn ignore(&mut self, names: &[&str]) {
        self.taken.extend(names.iter().map(|name| (*name).to_owned()));
    }

    /// Works on an inner object; an absent one is empty.
    pub fn inside<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        self.taken.insert(name.to_owned());
        let value = self.map.get(name).cloned().unwrap_or_default();
        let mut inner = Self {
            at: self.path(name),
            map: Map::new(),
            taken: BTreeSet::new(),
            refusals: Vec::new(),
            notes: Vec::new(),
        };
        match value {
            Value::Null => {}
            Value::Object(map) => inner.map = map,
            _ => self.refuse(name, "it must be an object."),
        }
        let worked = work(&mut inner);
        inner.refuse_rest();
        self.refusals.append(&mut inner.refusals);
        self.notes.append(&mut inner.notes);
        worked
    }

    pub fn refuse(&mut self, name: &str, message: impl Into<String>) {
        self.refusals.push(Refusal { path: self.path(name), message: message.into() });
    }

    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Reads the manifest as it is, for one that is of today's version already: what the API would refuse is told at its own path.
    pub fn whole<T: DeserializeOwned>(&mut self, check: impl FnOnce(&Value) -> Vec<Violation>) -> Option<T> {
        self.taken.extend(self.map.keys().cloned());
        let mut written = self.map.clone();
        written.remove("status");
        let refused = check(&Value::Object(written));
        if !refused.is_empty() {
            let told = |violation: Violation| Refusal { path: violation.path, message: violation.message };
            self.refusals.extend(refused.into_iter().map(told));
            return None;
        }
        match serde_json::from_value(Value::Object(self.map.clone())) {
            Ok(object) => Some(object),
            Err(error) => {
                self.refuse("spec", error.to_string());
                None
            }
        }
    }

    fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    fn refuse_rest(&mut self) {
        let rest: Vec<String> = self.map.keys().filter(|name| !self.taken.contains(*name)).cloned().collect();
        for name in rest {
            self.refuse(&name, "there is no such field: check its name and where it stands.");
        }
    }

    /// Ends the reading: what nobody took and what today's API would refuse are errors.
    pub fn finish<T: Serialize>(
        mut self,
        read: Option<T>,
        check: impl FnOnce(&T) -> Vec<Violation>,
    ) -> Result<Converted<T>, Vec<Refusal>> {
        if read.is_some() {
            self.refuse_rest();
        }
        if let (Some(object), true) = (&read, self.refusals.is_empty()) {
            let told = |violation: Violation| Refusal {
                path: violation.path,
                message: format!("the converted object would be refused: {}", violation.message),
            };
            self.refusals.extend(check(object).into_iter().map(told));
        }
        match read {
            Some(object) if self.refusals.is_empty() => Ok(Converted { object, notes: self.notes }),
            _ => {
                self.refusals.sort();
                Err(self.refusals)
            }
        }
    }
}
