//! The registry's pages, written from the schema: `terraform-provider-karp docs --out docs --examples examples`.
//!
//! A test holds that the pages in the repository are what this writes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tfplugin::schema::{Attribute, Kind, Mode, Nesting, OnChange};
use tfplugin::{Function, Number, Parameter, Provider, Schema, Signature, Type, Value};

/// Where to write, and where the examples are.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    out: PathBuf,
    examples: PathBuf,
}

impl Arguments {
    /// Reads the command line after `docs`.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut parsed = Self { out: PathBuf::from("docs"), examples: PathBuf::from("examples") };
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let folder = match flag.as_str() {
                "--out" => &mut parsed.out,
                "--examples" => &mut parsed.examples,
                other => {
                    return Err(format!("unknown argument {other}; usage: docs [--out docs] [--examples examples]"));
                }
            };
            *folder = rest.next().ok_or_else(|| format!("{flag} wants a folder"))?.into();
        }
        Ok(parsed)
    }
}

/// Writes `index.md` and a page for each resource, data source, ephemeral resource and function.
pub fn write(provider: &impl Provider, arguments: &Arguments) -> io::Result<()> {
    fs::create_dir_all(&arguments.out)?;
    let example = example(&arguments.examples.join("provider/provider.tf"), "terraform")?;
    fs::write(arguments.out.join("index.md"), index(provider.name(), &provider.schema(), &example))?;
    for resource in provider.resources() {
        Kinds::RESOURCE.write(arguments, resource.type_name(), &resource.schema())?;
    }
    for source in provider.data_sources() {
        Kinds::DATA_SOURCE.write(arguments, source.type_name(), &source.schema())?;
    }
    for resource in provider.ephemeral_resources() {
        Kinds::EPHEMERAL.write(arguments, resource.type_name(), &resource.schema())?;
    }
    for function in provider.functions() {
        write_function(arguments, function.as_ref())?;
    }
    Ok(())
}

/// What is documented alike: under which title, in which folder, by which example.
struct Kinds {
    title: &'static str,
    folder: &'static str,
    example: &'static str,
}

impl Kinds {
    const RESOURCE: Self = Self { title: "Resource", folder: "resources", example: "resource.tf" };
    const DATA_SOURCE: Self = Self { title: "Data Source", folder: "data-sources", example: "data-source.tf" };
    const EPHEMERAL: Self =
        Self { title: "Ephemeral Resource", folder: "ephemeral-resources", example: "ephemeral-resource.tf" };

    fn write(&self, arguments: &Arguments, name: &str, schema: &Schema) -> io::Result<()> {
        let examples = arguments.examples.join(self.folder).join(name);
        let usage = example(&examples.join(self.example), "terraform")?;
        let mut import = example(&examples.join("import.sh"), "shell")?;
        import.push_str(&identity_text(name, schema));
        let short = name.split_once('_').map_or(name, |(_, short)| short);
        let folder = arguments.out.join(self.folder);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("{short}.md")), page(name, self.title, schema, &usage, &import))
    }
}

/// Shows an import block by identity.
fn identity_text(name: &str, schema: &Schema) -> String {
    let Some(identity) = &schema.identity else { return String::new() };
    let mut text = String::from("\nWith OpenTofu 1.12 or Terraform 1.12 and newer, by identity:\n\n");
    let _ = write!(text, "```terraform\nimport {{\n  to = {name}.this\n  identity = {{\n");
    let required: Vec<&String> = identity.attributes.iter().filter(|(_, one)| one.required).map(|(n, _)| n).collect();
    let widest = required.iter().map(|name| name.len()).max().unwrap_or_default();
    for attribute in required {
        let _ = writeln!(text, "    {attribute:widest$} = \"...\"");
    }
    text.push_str("  }\n}\n```\n\n");
    for (attribute, told) in &identity.attributes {
        let needed = if told.required { "required" } else { "optional; checked when given" };
        let _ = writeln!(text, "- `{attribute}` (String, {needed}) {}", told.description);
    }
    text
}

fn write_function(arguments: &Arguments, function: &dyn Function) -> io::Result<()> {
    let folder = arguments.out.join("functions");
    fs::create_dir_all(&folder)?;
    let (name, signature) = (function.name(), function.signature());
    let usage = example(&arguments.examples.join("functions").join(name).join("function.tf"), "terraform")?;
    fs::write(folder.join(format!("{name}.md")), function_page(name, &signature, &usage))
}

fn function_page(name: &str, signature: &Signature, usage: &str) -> String {
    let mut page = front_matter(&format!("{name} function - karp"), &signature.summary);
    let _ = writeln!(page, "# function: {name}\n\n{}", signature.description);
    section(&mut page, "## Example Usage", usage);
    let shown = |one: &Parameter| format!("{} {}", one.name, type_name(&one.kind).to_lowercase());
    let all: Vec<String> = signature.parameters.iter().map(shown).collect();
    let returns = type_name(&signature.returns).to_lowercase();
    let _ = write!(page, "\n## Signature\n\n```text\n{name}({}) {returns}\n```\n", all.join(", "));
    page.push_str("\n## Arguments\n\n");
    for (at, one) in signature.parameters.iter().enumerate() {
        let null = if one.nullable { ", Nullable" } else { "" };
        let _ = writeln!(page, "{}. `{}` ({}{null}) {}", at + 1, one.name, type_name(&one.kind), one.description);
    }
    page
}

/// Reads an example as a fenced block; empty when there is none.
fn example(file: &Path, language: &str) -> io::Result<String> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(format!("```{language}\n{}\n```\n", text.trim_end())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

fn index(provider: &str, schema: &Schema, example: &str) -> String {
    let mut page = front_matter(&format!("{provider} Provider"), &schema.description);
    let _ = writeln!(page, "# {provider} Provider\n\n{}", schema.description);
    section(&mut page, "## Example Usage", example);
    page.push_str(&schema_text(schema));
    page
}

fn page(name: &str, title: &str, schema: &Schema, usage: &str, import: &str) -> String {
    let mut page = front_matter(&format!("{name} {title} - karp"), &schema.description);
    let _ = writeln!(page, "# {name} ({title})\n\n{}", schema.description);
    section(&mut page, "## Example Usage", usage);
    page.push_str(&schema_text(schema));
    section(&mut page, "## Import", import.trim_start_matches('\n'));
    page
}

fn front_matter(title: &str, description: &str) -> String {
    let first = description.split_once(". ").map_or(description, |(first, _)| first).trim_end_matches('.');
    format!("---\npage_title: \"{title}\"\nsubcategory: \"\"\ndescription: |-\n  {first}.\n---\n\n")
}

fn section(page: &mut String, title: &str, text: &str) {
    if !text.is_empty() {
        let _ = write!(page, "\n{title}\n\n{text}");
    }
}

fn schema_text(schema: &Schema) -> String {
    let mut text = String::from("\n## Schema\n");
    let mut nested = Vec::new();
    attributes(&mut text, &schema.attributes, "", &mut nested, "###");
    // Nested objects follow in the order in which they are met, and theirs after them.
    let mut at = 0;
    while at < nested.len() {
        let (path, inner): (String, &std::collections::BTreeMap<String, Attribute>) = nested[at].clone();
        let _ = write!(text, "\n<a id=\"{}\"></a>\n### Nested Schema for `{path}`\n", anchor(&path));
        attributes(&mut text, inner, &path, &mut nested, "####");
        at += 1;
    }
    text
}

type Nested<'a> = Vec<(String, &'a std::collections::BTreeMap<String, Attribute>)>;

fn attributes<'a>(
    text: &mut String,
    all: &'a std::collections::BTreeMap<String, Attribute>,
    path: &str,
    nested: &mut Nested<'a>,
    level: &str,
) {
    let groups = [
        ("Required", [Mode::Required].as_slice()),
        ("Optional", &[Mode::Optional, Mode::OptionalComputed]),
        ("Read-Only", &[Mode::Computed]),
    ];
    for (title, modes) in groups {
        let mut members = all.iter().filter(|(_, attribute)| modes.contains(&attribute.mode)).peekable();
        if members.peek().is_some() {
            let _ = write!(text, "\n{level} {title}\n\n");
        }
        for (name, attribute) in members {
            let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let _ = writeln!(text, "{}", line(name, &here, attribute));
            if let Kind::Nested(_, inner) = &attribute.kind {
                nested.push((here, inner));
            }
        }
    }
}

fn line(name: &str, path: &str, attribute: &Attribute) -> String {
    let mut kind = match &attribute.kind {
        Kind::Value(kind) => type_name(kind),
        Kind::Nested(Nesting::Single, _) => "Attributes".to_owned(),
        Kind::Nested(nesting, _) => format!("Attributes {nesting:?}"),
    };
    if attribute.sensitive {
        kind.push_str(", Sensitive");
    }
    if attribute.write_only {
        kind.push_str(", Write-only");
    }
    if attribute.deprecated.is_some() {
        kind.push_str(", Deprecated");
    }
    let mut line = format!("- `{name}` ({kind}) {}", attribute.description.replace('\n', " "));
    if let Some(default) = attribute.default.as_ref().and_then(literal) {
        let _ = write!(line, " Default: `{default}`.");
    }
    if attribute.on_change == OnChange::Replace {
        line.push_str(" A change replaces the resource.");
    }
    if let Some(instead) = &attribute.deprecated {
        let _ = write!(line, " {instead}");
    }
    if matches!(attribute.kind, Kind::Nested(..)) {
        let _ = write!(line, " (see [below for nested schema](#{}))", anchor(path));
    }
    line
}

fn anchor(path: &str) -> String {
    format!("nestedatt--{}", path.replace('.', "--"))
}

fn type_name(kind: &Type) -> String {
    match kind {
        Type::String => "String".to_owned(),
        Type::Number => "Number".to_owned(),
        Type::Bool => "Boolean".to_owned(),
        Type::Dynamic => "Dynamic".to_owned(),
        Type::List(element) => format!("List of {}", type_name(element)),
        Type::Set(element) => format!("Set of {}", type_name(element)),
        Type::Map(element) => format!("Map of {}", type_name(element)),
        Type::Object(_) => "Object".to_owned(),
        Type::Tuple(_) => "Tuple".to_owned(),
    }
}

/// Gives a default as users write it; long ones are told in the description.
fn literal(value: &Value) -> Option<String> {
    match value {
        Value::Bool(bool) => Some(bool.to_string()),
        Value::Number(Number::Int(int)) => Some(int.to_string()),
        Value::Number(number) => Some(number.as_f64().to_string()),
        Value::String(text) => Some(format!("{text:?}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tfplugin::schema::validate;

    #[test]
    fn a_page_shows_each_kind_of_attribute() {
        let inner =
            Attribute::nested_list([("namespace", Attribute::string().required().describe("Where."))]).required();
        let schema = Schema::new("Does a thing. And more.")
            .attribute(
                "name",
                Attribute::string().default("x").requires_replace().validate(validate::length(1, 3)).describe("N."),
            )
            .attribute("arn", Attribute::string().computed().describe("The ARN."))
            .attribute("selectors", inner.describe("Which."));
        let page = page("karp_thing", "Resource", &schema, "", "");
        for part in [
            "description: |-\n  Does a thing.\n",
            "- `name` (String) N. Default: `\"x\"`. A change replaces the resource.",
            "### Read-Only\n\n- `arn` (String) The ARN.",
            "- `selectors` (Attributes List) Which. (see [below for nested schema](#nestedatt--selectors))",
            "### Nested Schema for `selectors`\n\n#### Required\n\n- `namespace` (String) Where.",
        ] {
            assert!(page.contains(part), "{part}\n---\n{page}");
        }
    }

    #[test]
    fn arguments_are_checked() {
        let parse = |text: &[&str]| Arguments::parse(&text.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&["--out", "x"]).unwrap().out, PathBuf::from("x"));
        assert!(parse(&["--out"]).is_err() && parse(&["--nope", "x"]).is_err());
        assert!(parse(&["--help"]).unwrap_err().contains("usage: docs"));
    }
}
