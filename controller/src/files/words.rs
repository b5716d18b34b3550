//! What the messages of parsers mean to people who write manifests.

/// Says a message of a JSON or YAML parser in plain words, without its place; the second part is a field to be named after the path.
pub fn plain(message: &str) -> (String, Option<String>) {
    let message = without_place(message);
    if let Some(name) = message.strip_prefix("missing field ") {
        return ("it is missing".to_owned(), Some(name.trim_matches('`').to_owned()));
    }
    let told = wrong_type(message).or_else(|| wrong_choice(message)).or_else(|| syntax(message));
    (told.unwrap_or_else(|| message.to_owned()), None)
}

/// Takes the place in the piece out of a message: the place in the file stands before it.
fn without_place(message: &str) -> &str {
    let end = message.rfind(" at line ").unwrap_or(message.len());
    let message = message[..end].trim();
    match message.split_once(": ") {
        Some((place, rest)) if place.starts_with("error: line ") || place.starts_with("line ") => rest,
        _ => message,
    }
}

/// `invalid type: string "ten", expected i32`, and the same with a value.
fn wrong_type(message: &str) -> Option<String> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let found = match found.split_once(' ') {
        Some(("string", text)) => format!("the text {text}"),
        Some(("integer" | "boolean", value)) => value.trim_matches('`').to_owned(),
        Some(("floating", value)) => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        _ if found == "map" => "an object".to_owned(),
        _ if found == "sequence" => "a list".to_owned(),
        _ if found == "null" || found == "unit value" => "nothing".to_owned(),
        _ => found.to_owned(),
    };
    let words = expected.strip_prefix("struct ").unwrap_or(expected);
    let wanted = match words {
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "f32" | "f64" => "a number",
        "a string" | "string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "Quantity" => "a quantity such as 100m, 2 or 1Gi",
        "IntOrString" => "a whole number or a text",
        // the name of a type of ours or of Kubernetes
        name if expected.starts_with("struct ") || is_type(name) => "an object",
        other => other,
    };
    Some(format!("{wanted} is wanted, not {found}"))
}

fn is_type(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase()) && name.chars().all(|one| one.is_ascii_alphanumeric())
}

/// ``unknown variant `Never`, expected one of `A`, `B` ``
fn wrong_choice(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown variant `")?;
    let (found, expected) = rest.split_once("`, expected ")?;
    let choices = expected.strip_prefix("one of ").unwrap_or(expected).replace('`', "");
    Some(match choices.contains([',', ' ']) {
        true => format!("{found:?} is not one of {}", choices.replace(" or ", ", ")),
        false => format!("{found:?} is not {choices}"),
    })
}

/// What the YAML parser says of text that it cannot read.
fn syntax(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("duplicate mapping key: ") {
        let key = rest.rsplit_once(", set ").map_or(rest, |(key, _)| key);
        return Some(format!("the key {key} is there twice in one object: leave one of them"));
    }
    if message.starts_with("tabs disallowed") {
        return Some("a tab stands where YAML takes spaces only".to_owned());
    }
    if message.contains("block mapping") && message.contains("expected key") {
        return Some("a key is wanted here: this line is not indented as those before it".to_owned());
    }
    (message == "alias references unknown anchor")
        .then(|| "an alias (*name) has no anchor (&name) before it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_said_in_plain_words() {
        let cases = [
            (
                r#"invalid type: string "ten", expected i32 at line 3 column 4"#,
                r#"a whole number is wanted, not the text "ten""#,
            ),
            (
                r#"invalid type: string "a, expected b", expected struct RequirementSpec"#,
                r#"an object is wanted, not the text "a, expected b""#,
            ),
            ("invalid type: sequence, expected Quantity", "a quantity such as 100m, 2 or 1Gi is wanted, not a list"),
            ("invalid type: integer `7`, expected PodSpec", "an object is wanted, not 7"),
            ("invalid type: map, expected a sequence", "a list is wanted, not an object"),
            ("invalid value: integer `-1`, expected u32", "a whole number from 0 is wanted, not -1"),
            ("unknown variant `Never`, expected one of `A`, `B`", r#""Never" is not one of A, B"#),
            ("unknown variant `Is`, expected `A` or `B`", r#""Is" is not one of A, B"#),
            (
                "duplicate mapping key: name, set DuplicateKeyPolicy in Options if acceptable",
                "the key name is there twice in one object: leave one of them",
            ),
            ("something else at line 1 column 2", "something else"),
        ];
        for (message, words) in cases {
            assert_eq!(plain(message), (words.to_owned(), None));
        }
        assert_eq!(plain("missing field `spec`"), ("it is missing".to_owned(), Some("spec".to_owned())));
    }
}
