//! A provider that uses what `minimal` does not: identity, an upgraded schema, a take-over from another provider, a write-only and a
//! deprecated attribute, promises on unknown values, a word on destroys, a function and an ephemeral resource that is renewed. The tests run
//! it under real OpenTofu.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;

use jiff::{SignedDuration, Timestamp};
use tfplugin::schema::Identity;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, EphemeralResource, Function, FunctionError, Moved, Opened,
    PlannedChange, Provider, Renewed, Resource, Schema, Signature, Type, Value, async_trait,
};

/// Names a file that tells what core asks of the provider's processes.
const CALLS: &str = "SHOWCASE_CALLS";

/// Adds a line to that file, where there is one.
fn called(what: &str) {
    let file = std::env::var_os(CALLS).and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
    if let Some(mut file) = file {
        // whoever counts finds a line missing
        let _ = file.write_all(format!("{what}\n").as_bytes());
    }
}

pub struct Showcase;

impl Provider for Showcase {
    fn name(&self) -> &'static str {
        "showcase"
    }

    fn version(&self) -> &'static str {
        "0.1.0"
    }

    fn schema(&self) -> Schema {
        Schema::new("Shows each feature once.")
    }

    fn configure(&self, _config: Value) -> Diagnostics {
        Diagnostics::new()
    }

    fn resources(&self) -> Vec<Box<dyn Resource>> {
        vec![Box::new(Note)]
    }

    fn ephemeral_resources(&self) -> Vec<Box<dyn EphemeralResource>> {
        vec![Box::new(Ticket)]
    }

    /// The signatures are a part of the schemas, and a process that is not asked for these makes none.
    fn functions(&self) -> Vec<Box<dyn Function>> {
        called("schemas");
        vec![Box::new(Join), Box::new(Double)]
    }
}

/// A note in a folder. The secret is never stored: the file keeps only its length.
struct Note;

fn write(ctx: &Context, planned: &Value) -> Result<Value, Diagnostics> {
    let text = |name: &str| planned.get(name).as_str().unwrap_or_default().to_owned();
    let path = format!("{}/{}", text("folder"), text("title"));
    let secret = ctx.config().get("secret").as_str().unwrap_or_default().len();
    std::fs::write(&path, format!("{} secret:{secret}", text("content")))
        .map_err(|error| Diagnostic::error("Cannot write the note", error.to_string()).at("folder"))?;
    Ok(planned.clone().with("id", path.as_str()).with("url", format!("file://{path}")))
}

#[async_trait]
impl Resource for Note {
    fn type_name(&self) -> &'static str {
        "showcase_note"
    }

    fn schema(&self) -> Schema {
        let text = Attribute::string;
        Schema::new("A note.")
            .version(1)
            .attribute("folder", text().required().requires_replace().describe("Where."))
            .attribute("title", text().required().requires_replace().describe("Its name."))
            .attribute("content", text().required().describe("What it says."))
            .attribute("author", text().optional().deprecated("Write it into `content`.").describe("Who wrote it."))
            .attribute("secret", text().optional().sensitive().write_only().describe("Counted, never kept."))
            .attribute("secret_version", Attribute::number().optional().describe("Change it to send `secret` again."))
            .attribute("id", text().computed().use_state_for_unknown())
            .attribute("url", text().computed().begins_with("file://").describe("Where a browser finds it."))
            .identity(
                Identity::new("{folder}/{title}")
                    .version(1)
                    .required("folder", "The folder.")
                    .required("title", "The title.")
                    .optional("scheme", "The scheme of its URL.", |state| {
                        state.get("url").as_str().and_then(|url| url.split(':').next()).map_or(Value::Null, Value::from)
                    }),
            )
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let mut found = Diagnostics::new();
        if change.is_destroy() {
            found.warning("", "The note is thrown away", "Nobody can read it any more.");
        }
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        write(ctx, &planned)
    }

    async fn read(&self, _ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let path = state.get("id").as_str().unwrap_or_default().to_owned();
        let Ok(kept) = std::fs::read_to_string(&path) else { return Ok(None) };
        let content = kept.rsplit_once(" secret:").map_or(kept.as_str(), |(content, _)| content).to_owned();
        Ok(Some(state.with("content", content).with("url", format!("file://{path}"))))
    }

    async fn update(&self, ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        write(ctx, &planned)
    }

    async fn delete(&self, _ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        // gone already is as good
        let _ = std::fs::remove_file(prior.get("id").as_str().unwrap_or_default());
        Ok(())
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        match id.rsplit_once('/') {
            Some((folder, title)) => Ok(Value::object([("id", id), ("folder", folder), ("title", title)])),
            None => Err(Diagnostic::error("The import id is malformed", "Write `folder/title`.").into()),
        }
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        if !source.is("tested/tested", "tested_file") {
            return Ok(None);
        }
        let path = source.text("path").unwrap_or_default();
        let (folder, title) = path.rsplit_once('/').unwrap_or((".", path));
        Ok(Some(Value::object([("id", path), ("folder", folder), ("title", title)])))
    }

    /// Version 0 called the title `name`, as that of the identity did.
    fn upgrade(&self, _version: i64, mut state: serde_json::Value) -> Result<serde_json::Value, Diagnostics> {
        state["title"] = state["name"].take();
        Ok(state)
    }
}

/// A secret that lives for one run.
struct Ticket;

#[async_trait]
impl EphemeralResource for Ticket {
    fn type_name(&self) -> &'static str {
        "showcase_ticket"
    }

    fn schema(&self) -> Schema {
        Schema::new("A ticket.")
            .attribute("log", Attribute::string().required().describe("A file that tells what happened to it."))
            .attribute("value", Attribute::string().computed().sensitive().describe("The ticket."))
    }

    async fn open(&self, _ctx: &Context, config: Value) -> Result<Opened, Diagnostics> {
        let log = config.get("log").as_str().unwrap_or_default().to_owned();
        tell(&log, "opened")?;
        let result = config.with("value", "s3cret-ticket");
        Ok(Opened { result, renew_at: Some(soon()), private: log.into_bytes() })
    }

    /// Each renewal adds a mark to what the next call gets.
    async fn renew(&self, _ctx: &Context, mut private: Vec<u8>) -> Result<Renewed, Diagnostics> {
        let kept = String::from_utf8_lossy(&private).into_owned();
        tell(kept.trim_end_matches('+'), "renewed")?;
        private.push(b'+');
        Ok(Renewed { renew_at: Some(soon()), private })
    }

    async fn close(&self, _ctx: &Context, private: Vec<u8>) -> Result<(), Diagnostics> {
        let kept = String::from_utf8_lossy(&private);
        let log = kept.trim_end_matches('+');
        tell(log, &format!("closed{}", &kept[log.len()..]))
    }
}

fn soon() -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(1)
}

fn tell(log: &str, what: &str) -> Result<(), Diagnostics> {
    let told = std::fs::read_to_string(log).unwrap_or_default();
    std::fs::write(log, format!("{told}{what}\n"))
        .map_err(|error| Diagnostic::error("Cannot write the log", error.to_string()).into())
}

/// Joins texts.
struct Join;

impl Function for Join {
    fn name(&self) -> &'static str {
        "join"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::String, "Joins texts with a separator.")
            .parameter("separator", Type::String, "What stands between them; not empty.")
            .variadic("texts", Type::String, "The texts; null ones are passed over.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let (separator, texts) = arguments.split_first().ok_or_else(|| FunctionError::new("no separator"))?;
        let separator = separator.as_str().filter(|separator| !separator.is_empty());
        let separator = separator.ok_or_else(|| FunctionError::new("The separator is empty.").argument(0))?;
        let texts: Vec<&str> = texts.iter().filter_map(Value::as_str).collect();
        Ok(Value::from(texts.join(separator)))
    }
}

/// Doubles a number; it takes no more than that.
struct Double;

impl Function for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::Number, "Doubles a number.").parameter("number", Type::Number, "The number.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let number = arguments.first().and_then(Value::as_f64);
        number.map(|number| Value::from(number * 2.0)).ok_or_else(|| FunctionError::new("no number"))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    called("started");
    tfplugin::serve(Showcase).await
}
