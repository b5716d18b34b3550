//! The provider of the tests under real OpenTofu: the resource `tested_file` keeps a text file, with what only tests ask for. The shortest whole
//! provider is `minimal`.

use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tfplugin::schema::validate::{between, starts_with};
use tfplugin::{Attribute, Context, Diagnostic, Diagnostics, Provider, Resource, Schema, Value, async_trait};
use tfplugin::{from_value, to_value};

struct Tested;

impl Provider for Tested {
    fn name(&self) -> &'static str {
        "tested"
    }

    fn version(&self) -> &'static str {
        "0.1.0"
    }

    fn schema(&self) -> Schema {
        Schema::new("Keeps text files.")
    }

    fn configure(&self, _config: Value) -> Diagnostics {
        Diagnostics::new()
    }

    fn resources(&self) -> Vec<Box<dyn Resource>> {
        vec![Box::new(File)]
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Model {
    path: String,
    content: String,
    owner: String,
    pause_seconds: Option<i64>,
    size: Option<i64>,
    id: Option<String>,
}

struct File;

impl File {
    fn write(&self, mut model: Model) -> Result<Value, Diagnostics> {
        std::fs::write(&model.path, &model.content)
            .map_err(|error| Diagnostic::error("Cannot write the file", error.to_string()).at("path"))?;
        model.size = i64::try_from(model.content.len()).ok();
        model.id = Some(model.path.clone());
        Ok(to_value(&model)?)
    }
}

#[async_trait]
impl Resource for File {
    fn type_name(&self) -> &'static str {
        "tested_file"
    }

    fn schema(&self) -> Schema {
        Schema::new("A text file.")
            .attribute("path", Attribute::string().required().requires_replace().validate(starts_with("/")))
            .attribute("content", Attribute::string().required())
            .attribute("owner", Attribute::string().default("nobody").describe("Whom to ask."))
            .attribute("pause_seconds", Attribute::number().optional().validate(between(0.0, 60.0)))
            .attribute("size", Attribute::number().computed())
            .attribute("id", Attribute::string().computed().use_state_for_unknown())
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let model: Model = from_value(&planned)?;
        let (pause, path) = (model.pause_seconds.unwrap_or_default(), model.path.clone());
        let state = self.write(model)?;
        ctx.save(state.clone());
        if let Err(stopped) = ctx.sleep(Duration::from_secs(pause.unsigned_abs())).await {
            // as an API's answer is awaited although the run was stopped
            tokio::time::sleep(Duration::from_millis(500)).await;
            std::fs::write(path + ".stopped", "")
                .map_err(|error| Diagnostic::error("Cannot end", error.to_string()))?;
            return Err(stopped.into());
        }
        Ok(state)
    }

    async fn read(&self, _ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let path = state.get("path").as_str().unwrap_or_default();
        let Ok(content) = std::fs::read_to_string(path) else { return Ok(None) };
        let size = i64::try_from(content.len()).unwrap_or(i64::MAX);
        Ok(Some(state.with("content", content).with("size", size)))
    }

    async fn update(&self, _ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.write(from_value(&planned)?)
    }

    async fn delete(&self, _ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let path = prior.get("path").as_str().unwrap_or_default();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Diagnostic::error("Cannot remove the file", error.to_string()).into())
            }
            _ => Ok(()),
        }
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(Value::object([("path", id), ("id", id), ("owner", "nobody")]))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    tfplugin::serve(Tested).await
}
