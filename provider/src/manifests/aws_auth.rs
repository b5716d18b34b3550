//! The ConfigMap `kube-system/aws-auth`: which IAM roles are whom in the cluster. One entry is changed at a time, all others are kept.

use serde_json::{Map, Value as Json, json};

/// An entry for a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub role_arn: String,
    pub username: String,
    pub groups: Vec<String>,
}

/// The entries of `mapRoles`, those of others as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MapRoles(Vec<Map<String, Json>>);

/// Gives a role's ARN as the ConfigMap must have it: without the role's path, since EKS compares it so.
pub fn without_path(role_arn: &str) -> String {
    match role_arn.split_once(":role/") {
        Some((head, path)) => format!("{head}:role/{}", path.rsplit('/').next().unwrap_or(path)),
        None => role_arn.to_owned(),
    }
}

impl MapRoles {
    /// Reads the YAML text; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let read: Option<Vec<Map<String, Json>>> =
            serde_saphyr::from_str(text).map_err(|error| format!("mapRoles is no list of entries: {error}"))?;
        Ok(Self(read.unwrap_or_default()))
    }

    /// Writes the YAML text.
    pub fn render(&self) -> Result<String, String> {
        serde_saphyr::to_string(&self.0).map_err(|error| format!("mapRoles cannot be written: {error}"))
    }

    /// Finds the entry of a role.
    pub fn find(&self, role_arn: &str) -> Option<Entry> {
        let found = self.0.iter().find(|entry| is_of(entry, role_arn))?;
        let text = |name: &str| found.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
        let groups = found.get("groups").and_then(Json::as_array).into_iter().flatten();
        let groups = groups.filter_map(|group| group.as_str().map(str::to_owned)).collect();
        Some(Entry { role_arn: without_path(role_arn), username: text("username"), groups })
    }

    /// Puts an entry in the place of the one of its role, or at the end.
    pub fn put(&mut self, entry: &Entry) {
        let mut written = Map::new();
        written.insert("rolearn".to_owned(), without_path(&entry.role_arn).into());
        written.insert("username".to_owned(), entry.username.as_str().into());
        written.insert("groups".to_owned(), json!(entry.groups));
        match self.0.iter_mut().find(|other| is_of(other, &entry.role_arn)) {
            Some(other) => *other = written,
            None => self.0.push(written),
        }
    }

    /// Takes the entries of a role away; says whether there were any.
    pub fn remove(&mut self, role_arn: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| !is_of(entry, role_arn));
        self.0.len() < before
    }
}

fn is_of(entry: &Map<String, Json>, role_arn: &str) -> bool {
    let arn = entry.get("rolearn").and_then(Json::as_str).map(without_path);
    arn.as_deref() == Some(without_path(role_arn).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As EKS and eksctl write it: comments, a number-like name, an entry with a field that karp does not know.
    const THEIRS: &str = "- groups:\n  - system:bootstrappers\n  - system:nodes\n  rolearn: arn:aws:iam::111122223333:role/workers # managed\n  \
                          username: system:node:{{EC2PrivateDNSName}}\n- rolearn: arn:aws:iam::111122223333:role/team/admin\n  username: \"007\"\n  \
                          groups: [\"system:masters\"]\n  note: keep\n";

    fn entry(name: &str) -> Entry {
        Entry {
            role_arn: format!("arn:aws:iam::111122223333:role/{name}"),
            username: "system:node:{{EC2PrivateDNSName}}".to_owned(),
            groups: vec!["system:bootstrappers".to_owned(), "system:nodes".to_owned()],
        }
    }

    #[test]
    fn an_entry_comes_and_goes_and_those_of_others_stay() {
        let theirs = MapRoles::parse(THEIRS).unwrap();
        let mut roles = theirs.clone();
        roles.put(&entry("path/karp"));
        let text = roles.render().unwrap();
        let again = MapRoles::parse(&text).unwrap();
        assert_eq!(again, roles, "{text}");
        assert_eq!(again.find(&entry("karp").role_arn), Some(entry("karp")), "the path is left out");
        assert!(text.contains("note") && text.contains("007"), "{text}");
        let mut again = again;
        assert!(again.remove(&entry("karp").role_arn) && !again.remove(&entry("karp").role_arn));
        assert_eq!(again, theirs);
    }

    #[test]
    fn an_entry_of_the_same_role_is_replaced_in_its_place() {
        let mut roles = MapRoles::parse(THEIRS).unwrap();
        roles.put(&Entry { username: "other".to_owned(), ..entry("admin") });
        assert_eq!(roles.0.len(), 2);
        assert_eq!(roles.find(&entry("team/admin").role_arn).unwrap().username, "other");
    }

    #[test]
    fn nothing_is_an_empty_list_and_nonsense_is_told() {
        for nothing in ["", "\n", "[]\n", "null\n"] {
            assert_eq!(MapRoles::parse(nothing), Ok(MapRoles::default()), "{nothing:?}");
        }
        assert!(MapRoles::parse("a: b\n").unwrap_err().contains("mapRoles"));
    }
}
