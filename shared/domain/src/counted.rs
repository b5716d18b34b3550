//! Counts in words.

/// Says how many there are: `1 node`, `2 nodes`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
