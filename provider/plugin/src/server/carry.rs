//! States that come from elsewhere: imports, older schemas, other types.

use crate::codec::from_json;
use crate::engine::{null_unknowns, settle};
use crate::proto::terraform as tf;
use crate::server::service::{Service, Stored, guard};
use crate::server::wire;
use crate::{Diagnostic, Diagnostics, Moved, Value};

impl Service {
    pub(super) async fn import_state(
        &self,
        request: tf::import_resource_state::Request,
    ) -> Result<Stored, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let asked = match &schema.identity {
            Some(identity) => wire::read_identity(identity, request.identity.as_ref())?,
            None => Value::Null,
        };
        let id = match &schema.identity {
            Some(identity) if !asked.is_null() => identity.import_id(&asked)?,
            _ => request.id,
        };
        let ctx = self.context(schema.timeouts.read, Vec::new());
        let (task_kind, task_ctx) = (kind.clone(), ctx.clone());
        let answer = guard(async move { task_kind.resource.import(&task_ctx, &id).await }).await?;
        let state = null_unknowns(settle(schema, &Value::Null, answer)?);
        // what the user gave beyond the id is held against what the read that follows finds
        let identity = match &schema.identity {
            Some(identity) if !asked.is_null() => Some(wire::identity_value(identity, &asked)?),
            _ => wire::identity(schema, &state)?,
        };
        Ok(Stored {
            state: wire::dynamic(&state, shape)?,
            identity,
            private: ctx.private(),
            diagnostics: ctx.take_warnings(),
        })
    }

    pub(super) fn upgrade_state(
        &self,
        request: &tf::upgrade_resource_state::Request,
    ) -> Result<tf::DynamicValue, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let (schema, shape) = kind.shape();
        let json = stored(request.raw_state.as_ref())?;
        if request.version > schema.version {
            let detail = format!(
                "The state has schema version {}, this provider knows up to {}. Use the provider's newer version.",
                request.version, schema.version
            );
            return Err(Diagnostic::error("State is from a newer provider", detail).into());
        }
        let json = if request.version < schema.version { kind.resource.upgrade(request.version, json)? } else { json };
        wire::dynamic(&from_json(&json, shape)?, shape)
    }

    /// Every read derives the identity anew, so an older one only has to keep the shape of today's.
    pub(super) fn upgrade_identity(
        &self,
        request: &tf::upgrade_resource_identity::Request,
    ) -> Result<tf::ResourceIdentityData, Diagnostics> {
        let kind = self.resource(&request.type_name)?;
        let name = &request.type_name;
        let Some(identity) = &kind.shape().0.identity else {
            return Err(Diagnostic::error("No identity", format!("{name} has no identity in this version.")).into());
        };
        if request.version > identity.version {
            let detail = format!(
                "The identity has version {}, this provider knows up to {}. Use the provider's newer version.",
                request.version, identity.version
            );
            return Err(Diagnostic::error("Identity is from a newer provider", detail).into());
        }
        // Terraform asks this also of a state that has none, as one before 1.12 wrote it; the read that follows tells it
        let json = match &request.raw_identity {
            Some(raw) if !raw.json.is_empty() => stored(Some(raw))?,
            _ => serde_json::Value::Null,
        };
        wire::identity_value(identity, &from_json(&json, &identity.value_type())?)
    }

    pub(super) fn move_state(&self, request: tf::move_resource_state::Request) -> Result<Stored, Diagnostics> {
        let kind = self.resource(&request.target_type_name)?;
        let (schema, shape) = kind.shape();
        let source = Moved {
            provider_address: request.source_provider_address,
            type_name: request.source_type_name,
            schema_version: request.source_schema_version,
            state: stored(request.source_state.as_ref())?,
        };
        let Some(answer) = kind.resource.take_over(&source)? else {
            let detail = format!(
                "{} of {} cannot become {}. Remove it from state and import it instead.",
                source.type_name, source.provider_address, request.target_type_name
            );
            return Err(Diagnostic::error("Moving from this type is not supported", detail).into());
        };
        let state = null_unknowns(settle(schema, &Value::Null, answer)?);
        Ok(Stored {
            state: wire::dynamic(&state, shape)?,
            identity: wire::identity(schema, &state)?,
            private: Vec::new(),
            diagnostics: Diagnostics::new(),
        })
    }
}

fn stored(raw: Option<&tf::RawState>) -> Result<serde_json::Value, Diagnostics> {
    let Some(json) = raw.map(|raw| raw.json.as_slice()).filter(|json| !json.is_empty()) else {
        let detail = "The state was written by Terraform 0.11 or older, whose format is not supported.";
        return Err(Diagnostic::error("State is too old", detail).into());
    };
    Ok(serde_json::from_slice(json).map_err(|error| Diagnostic::error("Broken state", error.to_string()))?)
}
