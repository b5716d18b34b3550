//! The selectors of v1alpha1: one map whose values are comma-separated alternatives, with ids and names under keys of their own.

use crate::api::{AmiSelectorTerm, SecurityGroupSelectorTerm, StringMap, SubnetSelectorTerm};

/// What one map selects: by ids, or by tags (and a name) in every combination of the alternatives.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selected {
    pub ids: Vec<String>,
    pub names: Vec<String>,
    pub owners: Vec<String>,
    /// Each map is one alternative; a single empty one when no tag is asked for.
    pub tags: Vec<StringMap>,
}

fn parts(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Reads a selector.
pub fn read(selector: &StringMap) -> Selected {
    let mut selected = Selected { tags: vec![StringMap::new()], ..Selected::default() };
    for (key, value) in selector {
        match key.as_str() {
            "aws-ids" | "aws::ids" => selected.ids = parts(value),
            "aws::name" => selected.names = parts(value),
            "aws::owners" => selected.owners = parts(value),
            tag => {
                let alternatives = parts(value);
                let with = |tags: &StringMap, value: &str| {
                    let mut tags = tags.clone();
                    tags.insert(tag.to_owned(), value.to_owned());
                    tags
                };
                let before = std::mem::take(&mut selected.tags);
                selected.tags =
                    before.iter().flat_map(|tags| alternatives.iter().map(|value| with(tags, value))).collect();
            }
        }
    }
    selected
}

impl Selected {
    fn asks_tags(&self) -> bool {
        self.tags.iter().any(|tags| !tags.is_empty())
    }

    /// Says whether ids and tags are both asked for: today's terms cannot demand both of one object.
    pub fn is_mixed(&self) -> bool {
        !self.ids.is_empty() && (self.asks_tags() || !self.names.is_empty())
    }

    pub fn subnets(self) -> Vec<SubnetSelectorTerm> {
        if !self.ids.is_empty() {
            return self.ids.into_iter().map(|id| SubnetSelectorTerm { id: Some(id), ..Default::default() }).collect();
        }
        self.tags.into_iter().map(|tags| SubnetSelectorTerm { tags, id: None }).collect()
    }

    pub fn security_groups(self) -> Vec<SecurityGroupSelectorTerm> {
        if !self.ids.is_empty() {
            let term = |id| SecurityGroupSelectorTerm { id: Some(id), ..Default::default() };
            return self.ids.into_iter().map(term).collect();
        }
        self.tags.into_iter().map(|tags| SecurityGroupSelectorTerm { tags, ..Default::default() }).collect()
    }

    /// Without owners, a name or tags were looked for among the account's and Amazon's images.
    pub fn amis(self) -> Vec<AmiSelectorTerm> {
        if !self.ids.is_empty() {
            return self.ids.into_iter().map(|id| AmiSelectorTerm { id: Some(id), ..Default::default() }).collect();
        }
        let any = |list: Vec<String>, default: &[&str]| -> Vec<Option<String>> {
            if list.is_empty() {
                default.iter().map(|one| Some((*one).to_owned()).filter(|one| !one.is_empty())).collect()
            } else {
                list.into_iter().map(Some).collect()
            }
        };
        let (names, owners) = (any(self.names, &[""]), any(self.owners, &["self", "amazon"]));
        let mut terms = Vec::new();
        for tags in &self.tags {
            for name in &names {
                for owner in &owners {
                    terms.push(AmiSelectorTerm {
                        tags: tags.clone(),
                        name: name.clone(),
                        owner: owner.clone(),
                        ..Default::default()
                    });
                }
            }
        }
        terms
    }
}
