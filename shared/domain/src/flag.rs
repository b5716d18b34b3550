//! Go's words for true and false, in which the controller's environment and arguments are written.

/// Reads a word as Go's `strconv.ParseBool` does; nothing for any other.
#[must_use]
pub fn parse(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gos_words_are_read() {
        for (text, read) in [
            ("1", Some(true)),
            ("True", Some(true)),
            ("T", Some(true)),
            ("0", Some(false)),
            ("FALSE", Some(false)),
            ("f", Some(false)),
            ("tRUE", None),
            ("yes", None),
            ("", None),
        ] {
            assert_eq!(parse(text), read, "{text:?}");
        }
    }
}
