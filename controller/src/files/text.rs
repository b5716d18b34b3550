//! Text cut into pieces, one an object, each with its line: JSON values, YAML documents, and the items of lists in both.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::place::{offset_of, path_at};
use super::words::plain;
use super::yaml::{Content, Node, Transcript, YamlError};

/// How deep lists may lie in lists: no tool writes more than two, and each level takes stack.
const MOST_NESTED: usize = 64;

/// A part of a text that holds one object.
pub struct Piece<'a> {
    /// Line on which it begins, from 1.
    pub line: usize,
    /// `apiVersion` and `kind`: its own, or what the list around it says; none when nothing tells.
    pub kind: Option<(Cow<'a, str>, Cow<'a, str>)>,
    form: Form<'a>,
}

enum Form<'a> {
    Json(&'a str),
    /// What a document or an item of a list in it says, and the line on which the document begins.
    Yaml(Transcript, usize),
}

/// Says what is wrong with a text, and on which of its lines.
#[derive(Debug)]
pub struct Fault {
    /// Line in the whole text, from 1; 0 when it is not known.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl Piece<'_> {
    /// Reads the piece as a type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let text = self.json();
        serde_json::from_str(text).map_err(|error| {
            let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
            let (words, field) = plain(&error.to_string());
            let path = [path_at(text, before + error.column()), field.unwrap_or_default()];
            let path = path.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(".");
            let message = if path.is_empty() { words } else { format!("{path}: {words}") };
            Fault { line: self.line_of(error.line()), message }
        })
    }

    /// Answers the line on which the value of a path stands, such as `spec.limits[cpu]`.
    pub fn line_at(&self, path: &str) -> usize {
        let text = self.json();
        let before = &text[..offset_of(text, path)];
        self.line_of(1 + before.bytes().filter(|byte| *byte == b'\n').count())
    }

    fn json(&self) -> &str {
        match &self.form {
            Form::Json(text) => text,
            Form::Yaml(transcript, _) => &transcript.json,
        }
    }

    /// The line in the whole text of a line of the JSON text.
    fn line_of(&self, line: usize) -> usize {
        match &self.form {
            Form::Json(_) => self.line + line.saturating_sub(1),
            Form::Yaml(transcript, from) => from + transcript.line(line).saturating_sub(1),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
}

/// Cuts a text into its objects.
pub fn split<'a>(text: &'a str, file: &Path) -> Result<Vec<Piece<'a>>, Fault> {
    if text.trim_start().starts_with(['{', '[']) {
        match split_json(text) {
            // YAML has braces too
            Err(fault) => split_yaml(text).map_err(|other| if is_yaml(file) { other } else { fault }),
            pieces => pieces,
        }
    } else {
        split_yaml(text)
    }
}

fn is_yaml(file: &Path) -> bool {
    let name = file.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".yaml") || name.ends_with(".yml")
}

/// Counts lines up to places that only go forward.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    /// Answers the line on which a part of the text begins.
    fn of(&mut self, part: &str) -> usize {
        let place = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len());
        if place >= self.at {
            self.line += self.text.as_bytes()[self.at..place].iter().filter(|byte| **byte == b'\n').count();
            self.at = place;
        }
        self.line
    }
}

fn split_json(text: &str) -> Result<Vec<Piece<'_>>, Fault> {
    let mut pieces = Vec::new();
    let mut lines = Lines { text, at: 0, line: 1 };
    for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let value = value.map_err(|error| json_fault(&error, 1))?;
        cut_json(value.get(), (0, None), &mut lines, &mut pieces)?;
    }
    Ok(pieces)
}

/// What the list around a value says of it.
type Listed<'l, 'a> = Option<&'l (Cow<'a, str>, Cow<'a, str>)>;

fn cut_json<'a>(
    value: &'a str,
    (nested, listed): (usize, Listed<'_, 'a>),
    lines: &mut Lines<'a>,
    pieces: &mut Vec<Piece<'a>>,
) -> Result<(), Fault> {
    let line = lines.of(value);
    if nested > MOST_NESTED {
        return Err(Fault { line, message: format!("lists are nested more than {MOST_NESTED} deep") });
    }
    match value.as_bytes().first() {
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(value).map_err(|error| json_fault(&error, line))?;
            items.into_iter().try_for_each(|item| cut_json(item.get(), (nested + 1, listed), lines, pieces))
        }
        Some(b'{') => {
            let head: Head = serde_json::from_str(value).map_err(|error| json_fault(&error, line))?;
            let list = head.kind.as_deref().is_none_or(|kind| kind.ends_with("List"));
            if let (Some(items), true) = (head.items, list) {
                let kind = item_kind(head.api_version, head.kind);
                return cut_json(items.get(), (nested + 1, kind.as_ref()), lines, pieces);
            }
            let kind = own_kind(head.api_version, head.kind).or_else(|| listed.cloned());
            pieces.push(Piece { line, kind, form: Form::Json(value) });
            Ok(())
        }
        Some(b'n') => Ok(()),
        _ => Err(Fault { line, message: "an object or a list of objects is wanted here".to_owned() }),
    }
}

fn own_kind<'a>(version: Option<Cow<'a, str>>, kind: Option<Cow<'a, str>>) -> Option<(Cow<'a, str>, Cow<'a, str>)> {
    Some((version.unwrap_or_default(), kind?))
}

/// What the items of a typed list are: a `PodList` holds Pods that may not say so.
fn item_kind<'a>(version: Option<Cow<'a, str>>, kind: Option<Cow<'a, str>>) -> Option<(Cow<'a, str>, Cow<'a, str>)> {
    let item = kind?.strip_suffix("List").filter(|item| !item.is_empty())?.to_owned();
    Some((version.unwrap_or_default(), item.into()))
}

fn split_yaml(text: &str) -> Result<Vec<Piece<'_>>, Fault> {
    let mut pieces = Vec::new();
    for (line, document) in documents(text) {
        cut_yaml(document, line, &mut pieces)?;
    }
    Ok(pieces)
}

/// Cuts at document markers. They stand at the beginning of a line, where no scalar of a document can have them.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let marker = |line: &str, mark: &str| {
        line.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let mut all = Vec::new();
    let (mut start, mut first, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let end = at + line.len();
        if marker(line, "---") || marker(line, "...") {
            all.push((first, &text[start..at]));
            (start, first) = if line.starts_with('.') { (end, number + 2) } else { (at, number + 1) };
        }
        at = end;
    }
    all.push((first, &text[start..]));
    let empty = |line: &str| {
        let line = line.strip_prefix("---").unwrap_or(line).trim();
        // directives (%YAML 1.2) stand before the marker of the document that they speak of
        line.is_empty() || line.starts_with(['#', '%'])
    };
    all.retain(|(_, document)| !document.lines().all(empty));
    all
}

fn cut_yaml(document: &str, line: usize, pieces: &mut Vec<Piece<'_>>) -> Result<(), Fault> {
    let root = Node::read(document).map_err(|error| yaml_fault(&error, line))?;
    cut_node(&root, None, line, pieces)
}

/// Cuts a value of a document that begins on the line `from`.
fn cut_node<'a>(node: &Node, listed: Listed<'_, 'a>, from: usize, pieces: &mut Vec<Piece<'a>>) -> Result<(), Fault> {
    let line = from + node.line.saturating_sub(1);
    match &node.content {
        Content::Scalar(value) if value.is_null() => Ok(()),
        Content::Scalar(_) => Err(Fault { line, message: "an object or a list of objects is wanted here".to_owned() }),
        Content::Items(items) => items.iter().try_for_each(|item| cut_node(item, listed, from, pieces)),
        Content::Fields(_) => {
            let text = |name: &str| node.text(name).map(|text| Cow::Owned(text.to_owned()));
            let list = node.text("kind").is_none_or(|kind| kind.ends_with("List"));
            if let (Some(items), true) = (node.field("items"), list) {
                return cut_node(items, item_kind(text("apiVersion"), text("kind")).as_ref(), from, pieces);
            }
            let kind = own_kind(text("apiVersion"), text("kind")).or_else(|| listed.cloned());
            pieces.push(Piece { line, kind, form: Form::Yaml(Transcript::of(node), from) });
            Ok(())
        }
    }
}

fn json_fault(error: &serde_json::Error, from: usize) -> Fault {
    Fault { line: from + error.line().saturating_sub(1), message: plain(&error.to_string()).0 }
}

fn yaml_fault(error: &YamlError, from: usize) -> Fault {
    let line = error.location().map_or(1, |location| location.line() as usize);
    Fault { line: from + line.saturating_sub(1), message: plain(&error.to_string()).0 }
}
