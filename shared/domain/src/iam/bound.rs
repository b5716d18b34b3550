//! Which conditions bound a statement that is about anybody: those by which only callers from known accounts, organisations, networks or
//! resources are left. The keys, and what is too wide, are those by which S3 and IAM Access Analyzer tell public policies from others
//! ("The meaning of public" in S3's guide).

use std::net::IpAddr;

/// Says whether a condition bounds who is meant: it does not hold for a caller without the key, and each of its values is fixed.
#[must_use]
pub fn bounds<'a>(test: &str, variable: &str, values: impl IntoIterator<Item = &'a str>) -> bool {
    let (Some(matching), Some(kind)) = (Matching::of(test), Kind::of(variable)) else { return false };
    let mut values = values.into_iter().peekable();
    values.peek().is_some() && values.all(|value| is_fixed(matching, kind, value))
}

/// How an operator compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matching {
    Exact,
    /// `*` stands for anything.
    Pattern,
    /// `*` stands for anything within one of an ARN's six parts.
    Arn,
    Network,
}

/// What a key tells of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An account, an organisation, a network, a service: an id.
    Id,
    /// A path in an organisation, which begins with the organisation's id.
    Path,
    /// An identity's unique id, with a session's name behind a colon.
    User,
    Arn,
    Address,
}

impl Matching {
    /// Reads an operator; nothing for one that is also met by others than the values (`StringNotEquals`), or without the key (`…IfExists`,
    /// `ForAllValues:…`).
    fn of(test: &str) -> Option<Self> {
        let test = test.to_ascii_lowercase();
        match test.strip_prefix("foranyvalue:").unwrap_or(&test) {
            "stringequals" | "stringequalsignorecase" => Some(Self::Exact),
            "stringlike" => Some(Self::Pattern),
            "arnequals" | "arnlike" => Some(Self::Arn),
            "ipaddress" => Some(Self::Network),
            _ => None,
        }
    }
}

impl Kind {
    /// Reads a key, in any case as IAM does; nothing for one that anybody can meet, such as a principal's tag, or the account of the
    /// resource itself.
    fn of(variable: &str) -> Option<Self> {
        Some(match variable.to_ascii_lowercase().strip_prefix("aws:")? {
            "principalaccount"
            | "principalorgid"
            | "principalservicename"
            | "sourceaccount"
            | "sourceorgid"
            | "sourceowner"
            | "sourcevpc"
            | "sourcevpce"
            | "vpceaccount"
            | "vpceorgid" => Self::Id,
            "principalorgpaths" | "sourceorgpaths" | "vpceorgpaths" => Self::Path,
            "userid" => Self::User,
            "principalarn" | "sourcearn" | "sourcevpcarn" => Self::Arn,
            "sourceip" => Self::Address,
            _ => return None,
        })
    }
}

fn is_fixed(matching: Matching, kind: Kind, value: &str) -> bool {
    // A policy variable may be the caller's own value, which always equals itself.
    if value.is_empty() || value.contains("${") {
        return false;
    }
    match (matching, kind) {
        (Matching::Network, Kind::Address) => is_narrow(value),
        (Matching::Network, _) | (_, Kind::Address) => false,
        (Matching::Exact, _) => true,
        (Matching::Pattern | Matching::Arn, Kind::Id) => is_literal(value),
        (Matching::Pattern | Matching::Arn, Kind::Path) => is_literal(before(value, '/')),
        (Matching::Pattern | Matching::Arn, Kind::User) => is_literal(before(value, ':')),
        // There `*` reaches beyond colons, which a role's path may have, too: everything up to the account must be literal.
        (Matching::Pattern, Kind::Arn) => arn(value).is_some_and(|[head @ .., resource]| {
            head.into_iter().all(|part| !is_wild(part)) && names_account(head, resource)
        }),
        (Matching::Arn, Kind::Arn) => arn(value).is_some_and(|[head @ .., resource]| names_account(head, resource)),
    }
}

/// Says whether an ARN names an account; or all of a resource whose ARN has none, as a bucket's.
fn names_account(head: [&str; 5], resource: &str) -> bool {
    let [_, _, service, _, account] = head;
    is_literal(account) || (account.is_empty() && is_literal(service) && is_literal(resource))
}

fn arn(text: &str) -> Option<[&str; 6]> {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    parts.try_into().ok()
}

fn before(text: &str, end: char) -> &str {
    text.split(end).next().unwrap_or_default()
}

fn is_wild(text: &str) -> bool {
    text.contains(['*', '?'])
}

fn is_literal(text: &str) -> bool {
    !text.is_empty() && !is_wild(text)
}

/// Says whether a range of addresses is none of those that S3 calls public: wider than /8, of IPv6 wider than /32.
fn is_narrow(range: &str) -> bool {
    let (address, length) = range.split_once('/').map_or((range, None), |(address, length)| (address, Some(length)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let (least, all) = if address.is_ipv4() { (8, 32) } else { (32, 128) };
    length.map_or(Ok(all), str::parse::<u8>).is_ok_and(|length| (least..=all).contains(&length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_its_callers_bounds() {
        for (test, variable, values) in [
            ("StringEquals", "aws:SourceAccount", &["111122223333"][..]),
            ("StringEquals", "AWS:principalorgid", &["o-a1", "o-b2"]),
            ("stringlike", "aws:PrincipalAccount", &["111122223333"]),
            ("ForAnyValue:StringLike", "aws:PrincipalOrgPaths", &["o-a1/*"]),
            ("StringLike", "aws:userid", &["AROA1:*"]),
            ("ArnLike", "aws:SourceArn", &["arn:aws:sns:*:111122223333:*", "arn:aws:s3:::bucket"]),
            ("ArnEquals", "aws:PrincipalArn", &["arn:aws:iam::111122223333:role/*"]),
            ("StringLike", "aws:SourceArn", &["arn:aws:sns:eu-west-1:111122223333:alarms-*"]),
            ("StringEquals", "aws:SourceVpce", &["vpce-1"]),
            ("IpAddress", "aws:SourceIp", &["192.0.2.1", "10.0.0.0/8", "2001:db8::/32"]),
        ] {
            assert!(bounds(test, variable, values.iter().copied()), "{test} {variable} {values:?}");
        }
    }

    #[test]
    fn what_anybody_can_meet_does_not_bound() {
        let account = &["111122223333"][..];
        for (test, variable, values) in [
            // Met by everybody else, or by whoever has no such key.
            ("StringNotEquals", "aws:SourceAccount", account),
            ("StringEqualsIfExists", "aws:SourceAccount", account),
            ("ForAllValues:StringEquals", "aws:SourceAccount", account),
            ("Null", "aws:SourceAccount", &["false"]),
            // Not about who calls.
            ("StringEquals", "aws:ResourceAccount", account),
            ("StringEquals", "aws:PrincipalTag/team", &["a"]),
            ("StringEquals", "sqs:SourceAccount", account),
            ("Bool", "aws:SecureTransport", &["true"]),
            ("IpAddress", "aws:VpcSourceIp", &["10.0.0.1"]),
            // Values that leave it open.
            ("StringEquals", "aws:SourceAccount", &[]),
            ("StringEquals", "aws:SourceAccount", &[""]),
            ("StringEquals", "aws:PrincipalAccount", &["${aws:PrincipalAccount}"]),
            ("StringLike", "aws:SourceAccount", &["111122223333", "*"]),
            ("StringLike", "aws:PrincipalOrgID", &["o-?*"]),
            ("ForAnyValue:StringLike", "aws:PrincipalOrgPaths", &["*/ou-1/*"]),
            ("StringLike", "aws:userid", &["*:me"]),
            ("ArnLike", "aws:SourceArn", &["*"]),
            ("ArnLike", "aws:SourceArn", &["arn:aws:sns:*:*:*"]),
            ("ArnLike", "aws:SourceArn", &["arn:aws:s3:::*"]),
            ("StringLike", "aws:PrincipalArn", &["arn:*:iam::111122223333:role/a"]),
            ("IpAddress", "aws:SourceIp", &["10.0.0.1", "0.0.0.0/0"]),
            ("IpAddress", "aws:SourceIp", &["128.0.0.0/1"]),
            ("IpAddress", "aws:SourceIp", &["::/0"]),
            ("IpAddress", "aws:SourceIp", &["here"]),
            ("StringEquals", "aws:SourceIp", &["192.0.2.1"]),
        ] {
            assert!(!bounds(test, variable, values.iter().copied()), "{test} {variable} {values:?}");
        }
    }
}
