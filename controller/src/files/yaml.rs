//! YAML as JSON text in which every value has a line of its own, and the line of the YAML that it comes from. Objects are then read as
//! types from one format only: reading two dozen types from each format was most of what the compiler had to do for the whole program.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Options, Spanned};

/// A document that cannot be read.
pub use serde_saphyr::Error as YamlError;

/// A value with the place where it stands.
pub struct Node {
    /// Line in its document, from 1.
    pub line: usize,
    /// The value.
    pub content: Content,
}

/// What a value is.
pub enum Content {
    /// Neither a list nor an object.
    Scalar(Value),
    /// A list.
    Items(Vec<Node>),
    /// An object, in the order of the text.
    Fields(Vec<(String, Node)>),
}

impl Node {
    /// Reads a document.
    ///
    /// # Errors
    /// When it is not YAML, or has a key twice.
    pub fn read(document: &str) -> Result<Self, YamlError> {
        serde_saphyr::from_str_with_options::<Spanned<Content>>(document, options()).map(Node::from)
    }

    /// Answers a field of an object.
    pub fn field(&self, name: &str) -> Option<&Node> {
        let Content::Fields(fields) = &self.content else { return None };
        fields.iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// Answers the text of a field of an object.
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.field(name)?.content {
            Content::Scalar(value) => value.as_str(),
            _ => None,
        }
    }
}

impl From<Spanned<Content>> for Node {
    fn from(spanned: Spanned<Content>) -> Self {
        Node { line: spanned.referenced.line() as usize, content: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Content, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Content, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element::<Spanned<Content>>()? {
            items.push(item.into());
        }
        Ok(Content::Items(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Spanned<Content>>()? {
            fields.push((key, value.into()));
        }
        Ok(Content::Fields(fields))
    }
}

/// As the API server reads YAML (`yes` is text), with room for a cluster in one file: its size is bounded where it is read.
fn options() -> Options {
    serde_saphyr::options! {
        budget: None,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// JSON text made of YAML.
pub struct Transcript {
    /// The text.
    pub json: String,
    /// For each of its lines, the line in the YAML document.
    lines: Vec<usize>,
}

impl Transcript {
    /// Writes a value down.
    pub fn of(node: &Node) -> Self {
        let mut transcript = Transcript { json: String::new(), lines: vec![node.line] };
        transcript.write(node);
        transcript
    }

    /// Answers the line in the YAML document of a line of the JSON text, from 1.
    pub fn line(&self, json: usize) -> usize {
        let last = self.lines.len() - 1;
        self.lines[json.saturating_sub(1).min(last)]
    }

    fn write(&mut self, node: &Node) {
        match &node.content {
            Content::Scalar(value) => self.json.push_str(&value.to_string()),
            Content::Items(items) => {
                self.json.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.part(at, item.line);
                    self.write(item);
                }
                self.begin(node.line);
                self.json.push(']');
            }
            Content::Fields(fields) => {
                self.json.push('{');
                for (at, (key, value)) in fields.iter().enumerate() {
                    self.part(at, value.line);
                    self.json.push_str(&Value::from(key.as_str()).to_string());
                    self.json.push(':');
                    self.write(value);
                }
                self.begin(node.line);
                self.json.push('}');
            }
        }
    }

    fn part(&mut self, at: usize, line: usize) {
        if at > 0 {
            self.json.push(',');
        }
        self.begin(line);
    }

    fn begin(&mut self, line: usize) {
        self.json.push('\n');
        self.lines.push(line);
    }
}
