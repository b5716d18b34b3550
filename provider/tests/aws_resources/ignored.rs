//! Tags that the provider block leaves to others: they stay on the object, and no plan has anything to do with them.

use std::collections::BTreeMap;

use aws_sdk_iam::types::Tag;

use crate::life::unique;
use crate::stand::Sandbox;

const IGNORE: &str = "  ignore_tags = {\n    keys         = [\"owner\"]\n    key_prefixes = [\"cost/\"]\n  }";

fn resources(name: &str, tags: &str) -> String {
    format!(
        "resource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n  tags = {{ {tags} }}\n}}\n\
         resource \"karp_interruption_queue\" \"this\" {{\n  name = {name:?}\n  events = [\"spot\"]\n  tags = {{ {tags} }}\n}}\n"
    )
}

#[tokio::test]
async fn ignored_tags_stay_and_are_never_planned() {
    let Some(sandbox) = Sandbox::find("ignored") else { return };
    let (name, before) = (unique("ignored"), sandbox.what_exists());
    let (iam, sqs) = (sandbox.iam().await, sandbox.clients().await.sqs().clone());
    let stand = sandbox.stand(&format!("PROVIDER\n{}", resources(&name, "own = \"1\", owner = \"karp\"")));
    stand.apply();
    let url = stand.attribute("karp_interruption_queue.this", "url").as_str().unwrap().to_owned();
    let role_tags = async || {
        let found = iam.list_role_tags().role_name(&name).send().await.unwrap();
        found.tags().iter().map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect::<BTreeMap<_, _>>()
    };
    let queue_tags = async || {
        let found = sqs.list_queue_tags().queue_url(&url).send().await.unwrap();
        found.tags.unwrap_or_default().into_iter().collect::<BTreeMap<_, _>>()
    };

    // What karp had set and ignores from now on is left on the objects; others may change it as they like.
    let ignoring = sandbox.provider(IGNORE) + &resources(&name, "own = \"1\"");
    stand.write(&ignoring);
    stand.apply();
    stand.assert_empty_plan();
    for tags in [role_tags().await, queue_tags().await] {
        assert_eq!(tags.get("owner").map(String::as_str), Some("karp"), "{tags:?}");
    }
    for (key, value) in [("owner", "finance"), ("cost/centre", "7")] {
        let tag = Tag::builder().key(key).value(value).build().unwrap();
        iam.tag_role().role_name(&name).tags(tag).send().await.unwrap();
        sqs.tag_queue().queue_url(&url).tags(key, value).send().await.unwrap();
    }
    stand.assert_empty_plan();

    // An import takes them for nobody's, and a change of other tags leaves them.
    let import = |to: &str, id: &str| format!("import {{\n  to = {to}\n  id = {id:?}\n}}\n");
    let imports = import("karp_node_role.this", &name) + &import("karp_interruption_queue.this", &url);
    let second = sandbox.stand(&(ignoring + &imports));
    let run = second.apply();
    let quiet = |(action, _): &(String, String)| action == "import" || action == "noop";
    assert!(run.errors().is_empty() && run.changes().iter().all(quiet), "{}", run.text);
    second.write(&(sandbox.provider(IGNORE) + &resources(&name, "own = \"2\"")));
    second.apply();
    second.assert_empty_plan();
    let expected = [("cost/centre", "7"), ("karp.sh/cluster", &sandbox.cluster), ("own", "2"), ("owner", "finance")];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!((role_tags().await, queue_tags().await), (expected.clone(), expected));
    second.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
