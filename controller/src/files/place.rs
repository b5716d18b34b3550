//! Places in JSON text: from a field's path to where it stands, and back.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// A field or an item of a value, with the text of its value.
type Part<'t> = (String, &'t str);

/// The parts of an object or a list, each as a path names it: `.name`, `[0]`.
fn parts(text: &str) -> Vec<Part<'_>> {
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
        return items.iter().enumerate().map(|(at, item)| (format!("[{at}]"), item.get())).collect();
    }
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text).unwrap_or_default();
    fields.into_iter().map(|(name, value)| (format!(".{name}"), value.get())).collect()
}

/// Where a part of a text begins.
fn start(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}

/// Answers the path of the innermost value that begins at a place, holds it, or ends there, such as `spec.containers[0].ports`; empty for all of the text.
pub fn path_at(text: &str, offset: usize) -> String {
    let (mut path, mut value) = (String::new(), text);
    loop {
        let holds = |(_, part): &Part<'_>| {
            let from = start(text, part);
            from <= offset && offset <= from + part.len()
        };
        let Some((name, part)) = parts(value).into_iter().find(holds) else {
            return path.strip_prefix('.').map(str::to_owned).unwrap_or(path);
        };
        path.push_str(&name);
        value = part;
    }
}

/// Answers where the value of a path begins, or that of as much of the path as there is.
pub fn offset_of(text: &str, path: &str) -> usize {
    let (mut rest, mut value) = (format!(".{path}"), text);
    while !rest.is_empty() {
        // keys of maps stand in brackets: `spec.limits[cpu]`
        let leads = |name: &str| {
            let key = name.strip_prefix('.').map(|key| format!("[{key}]"));
            let tail = rest.strip_prefix(name).or_else(|| rest.strip_prefix(&key?))?;
            (tail.is_empty() || tail.starts_with(['.', '['])).then(|| tail.to_owned())
        };
        let Some((tail, part)) = parts(value).into_iter().find_map(|(name, part)| Some((leads(&name)?, part))) else {
            break;
        };
        (rest, value) = (tail, part);
    }
    start(text, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        r#"{"kind": "Pod", "spec": {"containers": [{"name": "c"}, {"cpu": "one"}], "limits": {"a.b/c": 1}}}"#;

    #[test]
    fn a_place_has_a_path_and_a_path_a_place() {
        let places = [
            ("kind", "\"Pod\""),
            ("spec.containers[1].cpu", "\"one\""),
            ("spec.limits[a.b/c]", "1}}"),
            ("spec.containers[0]", "{\"name\""),
        ];
        for (path, begins) in places {
            let at = offset_of(TEXT, path);
            assert!(TEXT[at..].starts_with(begins), "{path}: {}", &TEXT[at..]);
        }
        assert_eq!(path_at(TEXT, offset_of(TEXT, "spec.containers[1].cpu") + 1), "spec.containers[1].cpu");
        assert_eq!(path_at(TEXT, offset_of(TEXT, "spec.containers")), "spec.containers");
        assert_eq!(path_at(TEXT, TEXT.len()), "");
        assert_eq!(offset_of(TEXT, "spec.containers[7].cpu"), offset_of(TEXT, "spec.containers"));
    }
}
