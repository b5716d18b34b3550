//! Ephemeral resources: values that live for one run and reach neither plan nor state, such as a token.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::schema::Schema;
use crate::{Context, Diagnostics, Value};

/// What opening an ephemeral resource gave.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    /// The value, an object of the schema.
    pub result: Value,
    /// When to call `renew`, if the value would end sooner than the run may.
    pub renew_at: Option<Timestamp>,
    /// What `renew` and `close` need to know.
    pub private: Vec<u8>,
}

/// What a renewal gave.
#[derive(Debug, Clone, Default)]
pub struct Renewed {
    /// When to renew again.
    pub renew_at: Option<Timestamp>,
    /// What the next `renew` and `close` need to know.
    pub private: Vec<u8>,
}

/// A kind of ephemeral resource. Opened in plan and in apply, each time anew.
#[async_trait]
pub trait EphemeralResource: Send + Sync {
    /// The full name, such as `karp_cluster_token`.
    fn type_name(&self) -> &'static str;

    /// The schema.
    fn schema(&self) -> Schema;

    /// Checks what the schema's own validators cannot. Pure: no I/O; parts of the configuration may be unknown.
    fn validate(&self, _config: &Value) -> Diagnostics {
        Diagnostics::new()
    }

    /// Makes the value; the configuration is wholly known.
    async fn open(&self, ctx: &Context, config: Value) -> Result<Opened, Diagnostics>;

    /// Prolongs what was opened; the value itself stays.
    async fn renew(&self, _ctx: &Context, private: Vec<u8>) -> Result<Renewed, Diagnostics> {
        Ok(Renewed { renew_at: None, private })
    }

    /// Ends what was opened.
    async fn close(&self, _ctx: &Context, _private: Vec<u8>) -> Result<(), Diagnostics> {
        Ok(())
    }
}
