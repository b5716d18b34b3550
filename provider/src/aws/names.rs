//! Names that karp gives when the user gives none: deterministic, and never longer than AWS allows.

use sha2::{Digest, Sha256};

/// The longest name of an IAM role, an EventBridge rule.
pub const LONGEST_ROLE: usize = 64;
/// The longest name of an SQS queue.
pub const LONGEST_QUEUE: usize = 80;
/// The longest name of an instance profile.
pub const LONGEST_PROFILE: usize = 128;
/// The longest name of a Fargate profile: its pods carry it as the value of a label.
pub const LONGEST_FARGATE_PROFILE: usize = 63;

const DIGEST_LENGTH: usize = 8;

/// Gives the length of prefix that leaves room for the digest that tells names apart.
pub fn longest_prefix(longest: usize) -> usize {
    longest - DIGEST_LENGTH - 1
}

/// Gives `prefix` + `name`, shortened to `longest` with a digest of the whole when it would be longer.
pub fn fit(prefix: &str, name: &str, longest: usize) -> String {
    let whole = format!("{prefix}{name}");
    if whole.len() <= longest {
        return whole;
    }
    let digest = hex::encode(Sha256::digest(whole.as_bytes()));
    let kept: String = whole.chars().take(longest_prefix(longest)).collect();
    format!("{kept}-{}", &digest[..DIGEST_LENGTH])
}

/// Says whether this is how AWS writes its regions: `eu-west-1`, `us-gov-east-1`, `eusc-de-east-1`.
pub fn is_region(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let all = |part: &str, test: fn(&u8) -> bool| !part.is_empty() && part.bytes().all(|byte| test(&byte));
    let Some((number, words)) = parts.split_last() else { return false };
    words.len() >= 2 && words.iter().all(|word| all(word, u8::is_ascii_lowercase)) && all(number, u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_told_from_other_text() {
        for region in ["eu-west-1", "us-gov-east-1", "us-isob-east-1", "eusc-de-east-1", "ap-southeast-2"] {
            assert!(is_region(region), "{region}");
        }
        for other in ["", "eu", "eu-west", "eu-west-1a", "EU-west-1", "west-1", "eu--1", "example.com"] {
            assert!(!is_region(other), "{other}");
        }
    }

    #[test]
    fn names_fit_and_stay_apart() {
        assert_eq!(fit("KarpNodeRole-", "prod", LONGEST_ROLE), "KarpNodeRole-prod");
        let long = "a".repeat(80);
        let (one, two) = (fit("R-", &format!("{long}1"), LONGEST_ROLE), fit("R-", &format!("{long}2"), LONGEST_ROLE));
        assert_eq!((one.len(), two.len()), (LONGEST_ROLE, LONGEST_ROLE));
        assert_ne!(one, two);
        assert_eq!(one, fit("R-", &format!("{long}1"), LONGEST_ROLE));
    }
}
