//! Patterns of policies: `*` stands for any characters, `?` for one.

/// Parts of an ARN: `arn`, partition, service, region, account, and the resource, which may hold colons itself.
const ARN_PARTS: usize = 6;

/// Tells whether a text is what a pattern says, letter by letter.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut seen) = (0, 0);
    // where the last star is, and how much of the text it was taken to cover
    let mut star: Option<(usize, usize)> = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((place, covered)) = star else { return false };
                star = Some((place, covered + 1));
                at = place + 1;
                seen = covered + 1;
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

/// Tells whether two texts are alike by a pattern that does not heed case, as IAM compares actions.
pub fn matches_any_case(pattern: &str, text: &str) -> bool {
    matches(&pattern.to_lowercase(), &text.to_lowercase())
}

/// Tells whether an ARN is what a pattern says, part by part: no wildcard reaches into the next part. `*` alone is every resource.
pub fn matches_arn(pattern: &str, arn: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (pattern, arn) = (parts(pattern), parts(arn));
    pattern.len() == ARN_PARTS
        && arn.len() == ARN_PARTS
        && pattern.iter().zip(&arn).all(|(pattern, part)| matches(pattern, part))
}

/// Splits an ARN.
pub fn parts(arn: &str) -> Vec<&str> {
    arn.splitn(ARN_PARTS, ':').collect()
}

/// Tells whether a text is a pattern at all.
pub fn is_open(text: &str) -> bool {
    text.contains(['*', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_cover_any_length_and_question_marks_one_letter() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a*b*c", "a-b-b-c", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("abc", "abc", true),
            ("abc", "ABC", false),
            ("abc", "abcd", false),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, text), wanted, "{pattern} {text}");
        }
        assert!(matches_any_case("EC2:describe*", "ec2:DescribeInstances"));
    }

    #[test]
    fn a_wildcard_stays_in_its_part_of_an_arn() {
        let profile = "arn:aws:iam::1:instance-profile/karpenter/r/c/u/p";
        assert!(matches_arn("arn:aws:iam::1:instance-profile/karpenter/r/c/*", profile));
        assert!(matches_arn("arn:aws:iam::*:instance-profile/*", profile));
        assert!(!matches_arn("arn:aws:iam::1:instance-profile/karpenter/r/other/*", profile));
        assert!(!matches_arn("arn:aws:*:instance-profile/*", profile), "one star is not three parts");
        assert!(!matches_arn("arn:aws:iam:*", profile));
        assert!(matches_arn("*", "*"), "actions without resources");
        assert!(!matches_arn("arn:aws:iam::1:instance-profile/*", "*"), "every resource is more than some");
        assert!(matches_arn("arn:aws:logs:r:1:log-group:*", "arn:aws:logs:r:1:log-group:a:b"));
    }
}
