//! A whole provider: the resource `minimal_file` keeps a text file.

use tfplugin::{Attribute, Context, Diagnostic, Diagnostics, Provider, Resource, Schema, Value, async_trait};

struct Minimal;

impl Provider for Minimal {
    fn name(&self) -> &'static str {
        "minimal"
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

struct File;

#[async_trait]
impl Resource for File {
    fn type_name(&self) -> &'static str {
        "minimal_file"
    }
    fn schema(&self) -> Schema {
        Schema::new("A text file.")
            .attribute("path", Attribute::string().required().requires_replace())
            .attribute("content", Attribute::string().required())
    }
    async fn create(&self, _ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let text = |name: &str| planned.get(name).as_str().unwrap_or_default().to_owned();
        std::fs::write(text("path"), text("content"))
            .map_err(|error| Diagnostic::error("Cannot write the file", error.to_string()).at("path"))?;
        Ok(planned)
    }
    async fn read(&self, _ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let content = std::fs::read_to_string(state.get("path").as_str().unwrap_or_default());
        Ok(content.ok().map(|content| state.with("content", content)))
    }
    async fn update(&self, ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.create(ctx, planned).await
    }
    async fn delete(&self, _ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        std::fs::remove_file(prior.get("path").as_str().unwrap_or_default())
            .map_err(|error| Diagnostic::error("Cannot remove the file", error.to_string()).into())
    }
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    tfplugin::serve(Minimal).await
}
