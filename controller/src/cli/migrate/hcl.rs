//! HCL: values and blocks, laid out as `tofu fmt` would.

/// Columns that a line may have before a list or an object is spread over lines.
const WIDTH: usize = 110;
/// Entries that an object on one line may have.
const INLINE_ENTRIES: usize = 4;
const INDENT: usize = 2;
/// Ends a multi-line text.
const END: &str = "EOT";
/// Bare words that mean something else where a key is wanted.
const RESERVED: [&str; 4] = ["for", "null", "true", "false"];

/// A value as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text; nothing in it is a template.
    Text(String),
    /// A number, a truth value, `null` or an expression, as it stands.
    Bare(String),
    /// A list.
    List(Vec<Value>),
    /// An object or a map, in the order in which it is written.
    Object(Vec<(String, Value)>),
    /// A function on one value.
    Call(&'static str, Box<Value>),
}

impl Value {
    /// Makes a text.
    pub fn text(text: impl Into<String>) -> Self {
        Value::Text(text.into())
    }

    /// Writes plain data down, objects in the order of their keys.
    pub fn of_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::String(text) => Value::text(text),
            serde_json::Value::Array(items) => Value::List(items.iter().map(Value::of_json).collect()),
            serde_json::Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().map(|(key, value)| (key.clone(), Value::of_json(value))).collect();
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                Value::Object(entries)
            }
            bare => Value::Bare(bare.to_string()),
        }
    }

    /// Writes the value on one line.
    pub fn inline(&self) -> String {
        match self {
            Value::Text(text) => quoted(text),
            Value::Bare(bare) => bare.clone(),
            Value::List(items) => {
                format!("[{}]", items.iter().map(Value::inline).collect::<Vec<_>>().join(", "))
            }
            Value::Object(entries) if entries.is_empty() => "{}".to_owned(),
            Value::Object(entries) => {
                let each = |(name, value): &(String, Value)| format!("{} = {}", key(name), value.inline());
                format!("{{ {} }}", entries.iter().map(each).collect::<Vec<_>>().join(", "))
            }
            Value::Call(function, value) => format!("{function}({})", value.inline()),
        }
    }

    /// Tells whether the value is easy to read on one line, if it has room there.
    fn is_flat(&self) -> bool {
        match self {
            Value::Text(_) | Value::Bare(_) => true,
            Value::List(items) => {
                let objects = items.iter().filter(|item| matches!(item, Value::Object(_))).count();
                objects < 2 && items.iter().all(Value::is_flat)
            }
            Value::Object(entries) => {
                let nested = entries.iter().any(|(_, value)| matches!(value, Value::Object(inner) if inner.len() > 1));
                entries.len() <= INLINE_ENTRIES && !nested && entries.iter().all(|(_, value)| value.is_flat())
            }
            Value::Call(_, value) => value.is_flat(),
        }
    }

    /// Writes the value behind what takes `taken` columns of a line that is indented by `indent`.
    fn write(&self, indent: usize, taken: usize, out: &mut String) {
        let inline = self.inline();
        if self.is_flat() && indent + taken + inline.chars().count() <= WIDTH {
            out.push_str(&inline);
            return;
        }
        let pad = |indent: usize| " ".repeat(indent);
        match self {
            Value::Text(_) | Value::Bare(_) => out.push_str(&inline),
            Value::List(items) => {
                out.push_str("[\n");
                for item in items {
                    out.push_str(&pad(indent + INDENT));
                    item.write(indent + INDENT, 1, out);
                    out.push_str(",\n");
                }
                out.push_str(&pad(indent));
                out.push(']');
            }
            Value::Object(entries) => {
                out.push_str("{\n");
                let keyed: Vec<_> = entries.iter().map(|(name, value)| (key(name), value)).collect();
                assignments(&keyed, indent + INDENT, Strings::Quoted, out);
                out.push_str(&pad(indent));
                out.push('}');
            }
            Value::Call(function, value) => {
                out.push_str(function);
                out.push('(');
                value.write(indent, taken + function.len() + 2, out);
                out.push(')');
            }
        }
    }
}

/// A block: `resource "karp_node_pool" "default" { … }`.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// What stands above it.
    pub comments: Vec<String>,
    /// Its type.
    pub kind: &'static str,
    /// Its labels.
    pub labels: Vec<String>,
    /// Its attributes.
    pub attributes: Vec<(String, Value)>,
    /// The blocks in it.
    pub blocks: Vec<Block>,
}

impl Block {
    /// Begins a block.
    pub fn new(kind: &'static str, labels: &[&str]) -> Self {
        Block { kind, labels: labels.iter().map(|label| (*label).to_owned()).collect(), ..Block::default() }
    }

    /// Adds an attribute.
    pub fn set(mut self, name: &str, value: Value) -> Self {
        self.attributes.push((name.to_owned(), value));
        self
    }

    /// Adds a block in it.
    pub fn with(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// Writes the block.
    pub fn write(&self, out: &mut String) {
        self.write_at(0, out);
    }

    fn write_at(&self, indent: usize, out: &mut String) {
        let pad = " ".repeat(indent);
        for comment in self.comments.iter().flat_map(|comment| comment.lines()) {
            *out += format!("{pad}# {comment}").trim_end();
            out.push('\n');
        }
        *out += &format!("{pad}{}", self.kind);
        for label in &self.labels {
            *out += &format!(" {}", quoted(label));
        }
        *out += " {\n";
        let named: Vec<_> = self.attributes.iter().map(|(name, value)| (name.clone(), value)).collect();
        assignments(&named, indent + INDENT, Strings::Heredoc, out);
        for (at, block) in self.blocks.iter().enumerate() {
            if at > 0 || !named.is_empty() {
                out.push('\n');
            }
            block.write_at(indent + INDENT, out);
        }
        *out += &format!("{pad}}}\n");
    }
}

/// How texts of many lines are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strings {
    Quoted,
    Heredoc,
}

/// Writes `name = value` lines. Signs of equality of neighbours stand in one column; one that opens lines of its own stands alone.
fn assignments(all: &[(String, &Value)], indent: usize, strings: Strings, out: &mut String) {
    let pad = " ".repeat(indent);
    let mut group: Vec<(&str, String)> = Vec::new();
    let flush = |group: &mut Vec<(&str, String)>, out: &mut String| {
        let widest = group.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        for (name, value) in group.drain(..) {
            *out += &format!("{pad}{name:widest$} = {value}\n");
        }
    };
    for (name, value) in all {
        let mut written = String::new();
        match value {
            Value::Text(text) if strings == Strings::Heredoc => text_lines(text, indent, &mut written),
            value => value.write(indent, name.chars().count() + 3, &mut written),
        }
        let opens_lines = written.lines().next().is_some_and(|first| first.ends_with(['{', '[', '(']));
        let opens_lines = (opens_lines && written.contains('\n')) || written.starts_with("chomp(");
        if opens_lines {
            flush(&mut group, out);
            *out += &format!("{pad}{name} = {written}\n");
        } else {
            let ends_group = written.contains('\n');
            group.push((name, written));
            if ends_group {
                flush(&mut group, out);
            }
        }
    }
    flush(&mut group, out);
}

/// Writes a text as lines of its own where that says exactly the same, else quoted.
fn text_lines(text: &str, indent: usize, out: &mut String) {
    let lines: Vec<&str> = text.strip_suffix('\n').unwrap_or(text).split('\n').collect();
    let strange = |c: char| c != '\n' && c != '\t' && (c.is_control() || c == '\u{feff}');
    let blank = |line: &str| line.trim_start().is_empty();
    let ambiguous = lines.iter().any(|line| line.trim() == END) || has_run_of_introducers(text);
    let exact = !text.contains(strange) && !ambiguous && lines.iter().any(|line| !blank(line));
    if lines.len() < 2 || !exact {
        out.push_str(&quoted(text));
        return;
    }
    // Without its own margin a text can be indented: what all its lines have in common is taken off again.
    let flush = lines.iter().any(|line| !blank(line) && !line.starts_with(char::is_whitespace));
    let (begin, margin) = if flush { ("<<-", " ".repeat(indent + INDENT)) } else { ("<<", String::new()) };
    let whole = text.ends_with('\n');
    // The last line of such a text always ends in a line break.
    out.push_str(if whole { "" } else { "chomp(" });
    *out += &format!("{begin}{END}\n");
    for line in lines {
        // a blank line keeps all that it has
        let margin = if blank(line) { "" } else { margin.as_str() };
        *out += &format!("{margin}{}\n", line.replace("${", "$${").replace("%{", "%%{"));
    }
    let pad = " ".repeat(indent);
    *out += &format!("{}{END}", if flush { pad.as_str() } else { "" });
    if !whole {
        *out += &format!("\n{pad})");
    }
}

/// Tells whether two of the signs that begin a template stand before a brace: how HCL reads such a run outside quotes is not settled.
fn has_run_of_introducers(text: &str) -> bool {
    ["$${", "%%{", "$%{", "%${"].iter().any(|run| text.contains(run))
}

/// Writes a text in quotes.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    let doubtful = has_run_of_introducers(text);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' | '%' if doubtful => out += &format!("\\u{:04x}", u32::from(letter)),
            '$' | '%' if letters.peek() == Some(&'{') => out.extend([letter, letter]),
            letter if letter.is_control() || letter == '\u{feff}' => out += &format!("\\u{:04x}", u32::from(letter)),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// Writes the key of an object: bare where it is a name.
fn key(name: &str) -> String {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let goes_on = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if begins && goes_on && !RESERVED.contains(&name) { name.to_owned() } else { quoted(name) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(name: &str, value: Value) -> String {
        let mut out = String::new();
        Block::new("x", &[]).set("a", Value::Bare("1".to_owned())).set(name, value).write(&mut out);
        out
    }

    #[test]
    fn texts_hold_no_templates() {
        for (text, expected) in [
            ("plain", r#""plain""#),
            ("a \"b\" \\n", r#""a \"b\" \\n""#),
            ("${x} %{y} $5 100%", r#""$${x} %%{y} $5 100%""#),
            ("$${x}", r#""\u0024\u0024{x}""#),
            ("a\nb\t\r\u{7}", r#""a\nb\t\r\u0007""#),
        ] {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
    }

    #[test]
    fn user_data_stands_as_lines_where_that_is_exact() {
        assert_eq!(
            written("user_data", Value::text("#!/bin/sh\n  echo ${HOME} \"x\"\n \n\tend\n")),
            "x {\n  a         = 1\n  user_data = <<-EOT\n    #!/bin/sh\n      echo $${HOME} \"x\"\n \n    \tend\n  EOT\n}\n"
        );
        assert_eq!(
            written("user_data", Value::text("a\nb")),
            "x {\n  a = 1\n  user_data = chomp(<<-EOT\n    a\n    b\n  EOT\n  )\n}\n"
        );
        assert_eq!(written("u", Value::text("  a\n  b\n")), "x {\n  a = 1\n  u = <<EOT\n  a\n  b\nEOT\n}\n");
        for quoted in ["a\r\nb\n", "EOT\na\n", "one\n", "a\n$${b}\n", "\n\n"] {
            assert!(written("u", Value::text(quoted)).contains("u = \""), "{quoted:?}");
        }
    }

    #[test]
    fn short_values_stand_on_one_line_and_long_ones_on_many() {
        let requirement = |key: &str| json!({ "key": key, "operator": "In", "values": ["a", "b"] });
        let value = Value::of_json(&json!([requirement("one"), requirement("two")]));
        assert_eq!(
            written("requirements", value),
            "x {\n  a = 1\n  requirements = [\n    { key = \"one\", operator = \"In\", values = [\"a\", \"b\"] },\n    \
             { key = \"two\", operator = \"In\", values = [\"a\", \"b\"] },\n  ]\n}\n"
        );
        let value = Value::of_json(&json!({ "team": "a", "for": true, "x.y/z": null }));
        assert_eq!(
            written("labels", value),
            "x {\n  a      = 1\n  labels = { \"for\" = true, team = \"a\", \"x.y/z\" = null }\n}\n"
        );
    }
}
