//! What names one object for ever, beside its state: Terraform stores it, and an `import` block may give it in place of an id.

use std::collections::BTreeMap;

use crate::{Diagnostic, Diagnostics, Type, Value};

/// The identity of a kind of resource: texts by name, read from the state, and the import id that means the same.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The version of its shape; raise it when an attribute is added or taken away.
    pub version: i64,
    /// The attributes by name.
    pub attributes: BTreeMap<String, IdentityAttribute>,
    id: String,
    ending: Option<(char, String)>,
}

/// One text of an identity.
#[derive(Debug, Clone)]
pub struct IdentityAttribute {
    /// An import must give it; otherwise the provider finds it out, and an import that gives it has it checked.
    pub required: bool,
    /// Documentation.
    pub description: String,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Attribute(String),
    State(fn(&Value) -> Value),
}

impl Identity {
    /// Starts an identity. `id` is the import id with the attributes in braces, such as `{cluster_name}:{name}`.
    pub fn new(id: impl Into<String>) -> Self {
        Self { version: 0, attributes: BTreeMap::new(), id: id.into(), ending: None }
    }

    /// Sets the version of its shape.
    #[must_use]
    pub fn version(mut self, version: i64) -> Self {
        self.version = version;
        self
    }

    /// Adds the state's attribute of that name; an import must give it.
    #[must_use]
    pub fn required(self, name: impl Into<String>, description: impl Into<String>) -> Self {
        let name = name.into();
        let source = Source::Attribute(name.clone());
        self.with(name, IdentityAttribute { required: true, description: description.into(), source })
    }

    /// Adds an attribute that `source` finds in the state; an import may give it, and then it is checked against what is found.
    #[must_use]
    pub fn optional(
        self,
        name: impl Into<String>,
        description: impl Into<String>,
        source: fn(&Value) -> Value,
    ) -> Self {
        let source = Source::State(source);
        self.with(name.into(), IdentityAttribute { required: false, description: description.into(), source })
    }

    /// Lets the import id end with an optional attribute behind a mark, as in `ID@REGION`, where an import gives it.
    #[must_use]
    pub fn ending(mut self, mark: char, name: impl Into<String>) -> Self {
        self.ending = Some((mark, name.into()));
        self
    }

    fn with(mut self, name: String, attribute: IdentityAttribute) -> Self {
        self.attributes.insert(name, attribute);
        self
    }

    /// The object type of an identity.
    #[must_use]
    pub fn value_type(&self) -> Type {
        Type::object(self.attributes.keys().map(|name| (name.clone(), Type::String)))
    }

    /// Reads the identity off a state. What the state does not tell is null.
    #[must_use]
    pub fn of(&self, state: &Value) -> Value {
        let read = |attribute: &IdentityAttribute| match &attribute.source {
            Source::Attribute(name) => state.get(name).clone(),
            Source::State(find) => find(state),
        };
        let text = |value: Value| if value.as_str().is_some() { value } else { Value::Null };
        Value::object(self.attributes.iter().map(|(name, attribute)| (name.clone(), text(read(attribute)))))
    }

    /// Gives the import id that means the same as an identity that a user wrote.
    ///
    /// # Errors
    /// When a required attribute is missing or empty.
    pub fn import_id(&self, identity: &Value) -> Result<String, Diagnostics> {
        let mut id = self.id.clone();
        for (name, attribute) in &self.attributes {
            let text = identity.get(name).as_str().unwrap_or_default();
            if attribute.required && text.is_empty() {
                let detail = format!("The identity needs {name:?}: {}", attribute.description);
                return Err(Diagnostic::error("The identity is incomplete", detail).into());
            }
            id = id.replace(&format!("{{{name}}}"), text);
        }
        if let Some((mark, name)) = &self.ending
            && let Some(text) = identity.get(name).as_str().filter(|text| !text.is_empty())
        {
            id.push(*mark);
            id.push_str(text);
        }
        Ok(id)
    }

    /// Holds what an import asked for against what was found.
    ///
    /// # Errors
    /// The attributes that differ.
    pub fn check(&self, asked: &Value, found: &Value) -> Result<(), Diagnostics> {
        let differs = |name: &&String| !asked.get(name).is_null() && asked.get(name) != found.get(name);
        let tell = |name: &String| {
            let text = |value: &Value| value.as_str().unwrap_or("nothing").to_owned();
            let detail = format!(
                "{name:?} should be {:?}, but the object that was found has {:?}. Check the provider's region, account and cluster.",
                text(asked.get(name)),
                text(found.get(name))
            );
            Diagnostic::error("Another object was found", detail)
        };
        let wrong: Diagnostics = self.attributes.keys().filter(differs).map(tell).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}
