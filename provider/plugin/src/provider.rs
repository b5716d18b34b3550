//! The traits that a provider implements: dynamic values in, dynamic values out.

use async_trait::async_trait;

use crate::schema::Schema;
use crate::{AttributePath, Context, Diagnostic, Diagnostics, EphemeralResource, Function, Value};

/// A planned change as a plan hook sees it, after the schema's own rules were applied.
#[derive(Debug, Clone)]
pub struct PlannedChange {
    /// The state before; null for a create.
    pub prior: Value,
    /// What the user wrote; null for a destroy.
    pub config: Value,
    /// What will be; null for a destroy. The hook may change computed attributes that the user left out.
    pub planned: Value,
    /// The attributes whose change replaces the resource.
    pub requires_replace: Vec<AttributePath>,
}

impl PlannedChange {
    /// Says whether the resource will be created.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// Says whether the resource will be destroyed.
    #[must_use]
    pub fn is_destroy(&self) -> bool {
        self.planned.is_null()
    }

    /// Says whether the resource exists and stays, with or without a difference.
    #[must_use]
    pub fn is_update(&self) -> bool {
        !self.is_create() && !self.is_destroy()
    }

    /// Says whether anything differs between state and plan.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.prior != self.planned
    }

    /// Says whether the value at this path differs; unknown counts as different.
    #[must_use]
    pub fn changed(&self, path: impl Into<AttributePath>) -> bool {
        let path = path.into();
        let planned = self.planned.at(&path);
        !planned.whole_known() || self.prior.at(&path) != planned
    }

    /// Demands a replacement because of this attribute.
    pub fn replace(&mut self, path: impl Into<AttributePath>) {
        let path = path.into();
        if !self.requires_replace.contains(&path) {
            self.requires_replace.push(path);
        }
    }
}

/// A resource of another type, perhaps of another provider, that a `moved` block hands over, as state holds it.
#[derive(Debug, Clone)]
pub struct Moved {
    /// The address of its provider, such as `registry.opentofu.org/hashicorp/aws`; the host is best passed over.
    pub provider_address: String,
    /// Its type, such as `aws_iam_role`.
    pub type_name: String,
    /// The version of its schema.
    pub schema_version: i64,
    /// Its state by that schema.
    pub state: serde_json::Value,
}

impl Moved {
    /// Says whether it comes from that provider (`namespace/name`, on any host) and has that type.
    #[must_use]
    pub fn is(&self, provider: &str, type_name: &str) -> bool {
        let address = self.provider_address.split_once('/').map_or(self.provider_address.as_str(), |(_, rest)| rest);
        address == provider && self.type_name == type_name
    }

    /// The text of an attribute of its state.
    #[must_use]
    pub fn text(&self, attribute: &str) -> Option<&str> {
        self.state.get(attribute)?.as_str()
    }
}

/// A kind of resource. A value is an object as the schema declares it; attributes that an implementation leaves out are null.
///
/// On an error of `create`, `update` or `delete` state keeps what `Context::save` recorded last, else what it held before.
#[async_trait]
pub trait Resource: Send + Sync {
    /// The full name, such as `karp_node_role`.
    fn type_name(&self) -> &'static str;

    /// The schema; called once per process, so it may be built on the spot.
    fn schema(&self) -> Schema;

    /// Checks what the schema's own validators cannot. Pure: no I/O; parts of the configuration may be unknown.
    fn validate(&self, _config: &Value) -> Diagnostics {
        Diagnostics::new()
    }

    /// Refines a plan (create, update and destroy alike) after the schema's rules. With no prior state it does no I/O.
    async fn plan(&self, _ctx: &Context, _change: &mut PlannedChange) -> Diagnostics {
        Diagnostics::new()
    }

    /// Makes the resource and gives its state. Unknown attributes of `planned` are those that this call decides.
    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics>;

    /// Looks the resource up; `None` when it is gone.
    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics>;

    /// Changes the resource and gives its state.
    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics>;

    /// Removes the resource; one that is gone already is a success.
    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics>;

    /// Gives the least state from which `read` can go on, for the id that the user wrote.
    async fn import(&self, _ctx: &Context, _id: &str) -> Result<Value, Diagnostics> {
        let name = self.type_name();
        Err(Diagnostic::error("Import is not supported", format!("{name} cannot be imported.")).into())
    }

    /// Gives the least state from which `read` can go on, for a resource of another type; `None` when that type is not known here.
    /// Pure: no I/O.
    fn take_over(&self, _source: &Moved) -> Result<Option<Value>, Diagnostics> {
        Ok(None)
    }

    /// Brings the JSON of an older state to today's shape. Attributes that the schema no longer has are dropped afterwards.
    fn upgrade(&self, _version: i64, state: serde_json::Value) -> Result<serde_json::Value, Diagnostics> {
        Ok(state)
    }
}

/// A kind of data source.
#[async_trait]
pub trait DataSource: Send + Sync {
    /// The full name, such as `karp_cluster`.
    fn type_name(&self) -> &'static str;

    /// The schema.
    fn schema(&self) -> Schema;

    /// Checks what the schema's own validators cannot. Pure: no I/O.
    fn validate(&self, _config: &Value) -> Diagnostics {
        Diagnostics::new()
    }

    /// Reads; the configuration is wholly known.
    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics>;
}

/// A provider: its configuration and its kinds. Resources share what they need (clients, settings) through `Arc`s that the
/// provider handed to them and that `configure` fills.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The short name, such as `karp`.
    fn name(&self) -> &'static str;

    /// The version of the binary.
    fn version(&self) -> &'static str;

    /// The source address without host, `namespace/name`.
    fn source(&self) -> String {
        format!("{0}/{0}", self.name())
    }

    /// The schema of the provider block.
    fn schema(&self) -> Schema;

    /// Checks what the schema's own validators cannot. Pure: no I/O.
    fn validate(&self, _config: &Value) -> Diagnostics {
        Diagnostics::new()
    }

    /// Takes the configuration in. Does no I/O: it runs in every plan and apply, and parts may be unknown at plan.
    fn configure(&self, config: Value) -> Diagnostics;

    /// The kinds of resource.
    fn resources(&self) -> Vec<Box<dyn Resource>>;

    /// The kinds of data source.
    fn data_sources(&self) -> Vec<Box<dyn DataSource>> {
        Vec::new()
    }

    /// The kinds of ephemeral resource.
    fn ephemeral_resources(&self) -> Vec<Box<dyn EphemeralResource>> {
        Vec::new()
    }

    /// The functions.
    fn functions(&self) -> Vec<Box<dyn Function>> {
        Vec::new()
    }

    /// Does what was left for later, such as what may be done only once Terraform has heard an answer: no call follows. Terraform kills the
    /// process two seconds after it asked it to end.
    async fn close(&self) {}
}
