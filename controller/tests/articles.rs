//! `karp migrate` on the manifests of five articles on Karpenter (`shared/domain/tests/articles`), and the commands of karp that our own pages
//! name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROFILE: [&str; 2] = ["--instance-profile", "KarpenterNodeInstanceProfile-prod"];

fn article(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/domain/tests/articles").join(format!("{name}.yaml"))
}

/// Runs `karp`; answers its code and both streams.
fn karp(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_karp"));
    let output = command.args(arguments).env("RUST_BACKTRACE", "0").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn migrate(file: &Path, more: &[&str]) -> (i32, String, String) {
    karp(&[&["migrate", "-f", file.to_str().unwrap()], more].concat())
}

#[test]
fn each_manifest_is_written_or_refused_at_its_path() {
    let pool = "Provisioner v1alpha5 default: written as karp_node_pool";
    let inline = "Provisioner v1alpha5 default: written as karp_node_class";
    let template = "AWSNodeTemplate v1alpha1 default: written as karp_node_class";
    let cluster = "ClusterConfig prod: passed over, since it is eksctl's: `terraform/eks` makes such a cluster";
    let asked = "neither a role nor an instance profile is known";
    // The article, options, the exit code, and what is told.
    let cases: [(&str, &[&str], i32, &[&str]); 7] = [
        ("000", &[], 0, &[pool, "Provisioner v1alpha5 on-demand: written as karp_node_pool", "2 objects use old keys"]),
        (
            "001",
            &[],
            1,
            &[
                "NodePool default-np: spec.template.spec.expireAfter: \"720h | Never\"",
                "NodePool default-np: spec.disruption.consolidationPolicy: \"WhenEmptyOrUnderutilized | WhenEmpty\"",
                "NodePool default-np: spec.disruption.consolidateAfter: \"1m | Never\"",
                "(` | ` stands between alternatives: write one of them)",
                "EC2NodeClass mynodeclass: spec: exactly one of role and instanceProfile must be set",
                "EC2NodeClass mynodeclass: spec.amiSelectorTerms[0].alias: the alias' family must be one of al2, al2023",
            ],
        ),
        ("002", &[], 0, &[pool, inline, cluster]),
        (
            "003",
            &[],
            2,
            &[pool, "AWSNodeTemplate default: spec.instanceProfile: ", asked, "(--role or --instance-profile)"],
        ),
        ("003", &PROFILE, 0, &[pool, template]),
        ("004", &[], 2, &[pool, "Provisioner default: spec.provider.instanceProfile: ", asked]),
        ("004", &PROFILE, 0, &[pool, inline, cluster]),
    ];
    for (name, options, expected, told) in cases {
        let (code, written, stderr) = migrate(&article(name), options);
        assert_eq!(code, expected, "{name}: {stderr}");
        assert_eq!(written.is_empty(), code == 1, "{name}: {written}");
        for line in told {
            assert!(stderr.contains(line), "{name}: {line:?} is not told: {stderr}");
        }
    }
}

#[test]
fn workloads_keep_running_or_get_a_patch() {
    let (code, script, told) = migrate(&article("000"), &["--patch"]);
    assert_eq!(code, 0, "{told}");
    for (workload, pool) in [("one-off", "default"), ("steady", "on-demand")] {
        let command =
            script.lines().find(|line| line.starts_with(&format!("kubectl patch deployment {workload} -n shop")));
        let command = command.unwrap_or_else(|| panic!("no patch of {workload}: {script}"));
        assert!(command.contains(&format!("\"karpenter.sh/nodepool\":\"{pool}\"")), "{command}");
        assert!(command.contains("\"karpenter.sh/provisioner-name\":null"), "{command}");
    }
    for name in ["002", "004"] {
        let (_, _, told) = migrate(&article(name), &PROFILE);
        assert!(!told.contains("old keys"), "{name}: {told}");
    }
}

#[test]
fn the_invalid_manifest_is_written_once_it_is_mended() {
    let mut text = std::fs::read_to_string(article("001")).unwrap();
    for (from, to) in [
        ("720h | Never", "720h"),
        ("WhenEmptyOrUnderutilized | WhenEmpty", "WhenEmpty"),
        ("1m | Never", "1m"),
        ("  instanceProfile: KarpenterNodeInstanceProfile-prod\n", ""),
        ("AL2023@latest", "al2023@latest"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let mended = std::env::temp_dir().join(format!("karp-article-{}.yaml", std::process::id()));
    std::fs::write(&mended, text).unwrap();
    let (code, written, told) = migrate(&mended, &["--no-import"]);
    std::fs::remove_file(&mended).unwrap();
    assert_eq!(code, 0, "{told}");
    for resource in ["resource \"karp_node_class\" \"mynodeclass\"", "resource \"karp_node_pool\" \"default_np\""] {
        assert!(written.contains(resource), "{written}");
    }
}

/// As 001 to 003 print them, for a shell or the reader to fill in.
const PRINTED: &str = r#"
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: mynodeclass }
spec:
  role: "KarpenterNodeRole-${CLUSTER_NAME}"
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { Name: my_private_subnet_1 } }]
  securityGroupSelectorTerms: [{ tags: { Name: my_secgroup } }]
---
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata:
  name: ${CLUSTER_NAME}
spec:
  provider:
    subnetSelector: { tier: private }
    securityGroupSelector: { tier: private }
    instanceProfile: KarpenterNodeInstanceProfile-${CLUSTER_NAME}
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: { name: default }
spec:
  instanceProfile: nodes
  securityGroupSelector:
    karpenter.sh/discovery: <CLUSTER_NAME>
  subnetSelector:
    karpenter.sh/discovery: <CLUSTER_NAME>
  tags:
    karpenter.sh/discovery: <CLUSTER_NAME>
"#;

#[test]
fn placeholders_that_nobody_filled_in_are_told_at_their_paths() {
    let file = std::env::temp_dir().join(format!("karp-printed-{}.yaml", std::process::id()));
    std::fs::write(&file, PRINTED).unwrap();
    let (code, written, told) = migrate(&file, &["--no-import"]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(code, 0, "{told}");
    assert!(written.contains("KarpenterNodeRole-$${CLUSTER_NAME}"), "{written}");
    for (path, left, times) in [
        ("metadata.name", "${CLUSTER_NAME}", 2),
        ("spec.role", "${CLUSTER_NAME}", 1),
        ("spec.instanceProfile", "${CLUSTER_NAME}", 1),
        ("spec.template.spec.nodeClassRef.name", "${CLUSTER_NAME}", 1),
        ("spec.tags[karpenter.sh/discovery]", "<CLUSTER_NAME>", 1),
        ("spec.subnetSelectorTerms[0].tags[karpenter.sh/discovery]", "<CLUSTER_NAME>", 1),
        ("spec.securityGroupSelectorTerms[0].tags[karpenter.sh/discovery]", "<CLUSTER_NAME>", 1),
    ] {
        let line = format!("{path}: {left} is a placeholder that was not filled in: write what it stands for.");
        assert_eq!(told.matches(&line).count(), times, "{line}: {told}");
    }
}

/// Messages that pages quote and that begin as a command does.
const MESSAGES: [&str; 1] = ["karp does not place pods with ..."];

/// The pages on which an option that stands alone is the controller's.
const OF_THE_CONTROLLER: [&str; 4] = ["controller/README.md", "docs/metrics.md", "docs/packing.md", "docs/prices.md"];

/// A command of karp that a page names.
struct Named {
    /// The page and the line that it begins at.
    place: String,
    /// What follows `karp`.
    words: Vec<String>,
    /// It stands in a block, for a reader to run as it is.
    whole: bool,
}

/// The pages for people, by their paths.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = Vec::from(["README.md", "CONTRIBUTING.md", "controller/README.md"].map(str::to_owned));
    for folder in ["docs", "docs/guides"] {
        let all = std::fs::read_dir(root.join(folder)).unwrap();
        let all = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.extend(all.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")));
    }
    names.sort();
    let read = |name: String| {
        let page = std::fs::read_to_string(root.join(&name)).unwrap();
        (name, page)
    };
    names.into_iter().map(read).collect()
}

/// The prose of a page, with an empty line for each one of a block, and the blocks of shell by the lines that they begin at.
fn parts(page: &str) -> (String, Vec<(usize, Vec<&str>)>) {
    let (mut prose, mut blocks) = (String::new(), Vec::new());
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let block = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let block: Vec<&str> = block.collect();
            prose += &"\n".repeat(block.len() + 2);
            if ["console", "shell", "sh", "bash"].contains(&language.trim()) {
                blocks.push((at + 2, block));
            }
        } else {
            prose += line;
            prose.push('\n');
        }
    }
    (prose, blocks)
}

/// What stands in backticks, by the lines of the text; it may go over the end of a line.
fn spans(text: &str) -> Vec<(usize, String)> {
    let (mut line, mut found) = (1, Vec::new());
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            assert!(!part.contains("\n\n"), "a backtick is not closed: {part}");
            found.push((line, part.replace('\n', " ")));
        }
        line += part.matches('\n').count();
    }
    found
}

/// The commands of a line of shell, cut into words; a comment is none, and where output goes begins another.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut found, mut words) = (Vec::new(), Vec::<String>::new());
    let (mut word, mut quote) = (None::<String>, None::<char>);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '|' | '&' | ';' | '>') => {
                words.extend(word.take());
                if c != ' ' {
                    found.push(std::mem::take(&mut words));
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    found.push(words);
    found
}

/// The lines of a block that are shell, with what continues them: those with a prompt, or all where none has one.
fn typed(first: usize, block: &[&str]) -> Vec<(usize, String)> {
    let prompted = block.iter().any(|line| line.trim_start().starts_with("$ "));
    let mut found = Vec::new();
    let mut lines = (first..).zip(block);
    while let Some((at, line)) = lines.next() {
        let line = line.trim();
        let Some(line) = line.strip_prefix("$ ").or_else(|| (!prompted).then_some(line)) else { continue };
        let mut text = line.to_owned();
        while let Some(begun) = text.strip_suffix('\\') {
            text = begun.to_owned() + lines.next().map_or("", |(_, line)| line.trim());
        }
        found.push((at, text));
    }
    found
}

/// What a line has of karp: the words after its name.
fn of_karp(line: &str) -> impl Iterator<Item = Vec<String>> {
    let ours = commands(line).into_iter().filter(|words| words.len() > 1 && words[0] == "karp");
    ours.map(|words| words[1..].to_vec())
}

/// What stands before the first option.
fn until_options(words: &[String]) -> &[String] {
    &words[..words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len())]
}

/// The commands of karp that a page names. An option that stands alone is that of the command in the section's heading.
fn named(name: &str, page: &str) -> Vec<Named> {
    let (prose, blocks) = parts(page);
    let (mut found, mut begin) = (Vec::new(), 0);
    for section in prose.split("\n## ") {
        let heading = spans(section.lines().next().unwrap_or_default());
        let mut owner = heading.iter().flat_map(|(_, span)| of_karp(span)).next();
        if owner.is_none() && OF_THE_CONTROLLER.contains(&name) {
            owner = Some(vec!["controller".to_owned()]);
        }
        for (line, span) in spans(section).into_iter().filter(|(_, span)| !MESSAGES.contains(&span.as_str())) {
            let mut all: Vec<Vec<String>> = of_karp(&span).collect();
            if let Some(owner) = owner.as_deref().filter(|_| span.starts_with("--")) {
                all.extend(commands(&span).into_iter().map(|words| [until_options(owner), words.as_slice()].concat()));
            }
            let place = format!("{name}:{}", begin + line);
            found.extend(all.into_iter().map(|words| Named { place: place.clone(), words, whole: false }));
        }
        begin += section.matches('\n').count() + 1;
    }
    for (line, text) in blocks.iter().flat_map(|(first, block)| typed(*first, block)) {
        let place = format!("{name}:{line}");
        found.extend(of_karp(&text).map(|words| Named { place: place.clone(), words, whole: true }));
    }
    found
}

/// Asks a command for its help, which fails at any word before that karp does not take.
fn help(words: &[String]) -> (i32, String, String) {
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
    karp(&words)
}

/// The options that a help lists, in each of their spellings.
fn options(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    listed.flat_map(|line| line.split([' ', ',']).take_while(|word| word.is_empty() || word.starts_with('-')))
}

/// Says where which of the commands is not there, or not with an option that is written.
fn faults(all: &[Named]) -> Vec<String> {
    let mut helps: BTreeMap<&[String], (i32, String, String)> = BTreeMap::new();
    let mut found = Vec::new();
    for Named { place, words, whole } in all {
        let command = until_options(words);
        let (code, text, told) = helps.entry(command).or_insert_with(|| help(command));
        let mut fault = |what: &str| found.push(format!("{place}: karp {}: {what}", words.join(" ")));
        if *code != 0 {
            fault(told.trim());
            continue;
        }
        let written = words.iter().filter(|word| word.starts_with('-') && *word != "-");
        let unknown = written.map(|word| word.split('=').next().unwrap_or(word));
        let unknown: Vec<&str> = unknown.filter(|flag| options(text).all(|option| option != *flag)).collect();
        for flag in &unknown {
            fault(&format!("`karp {} --help` lists no {flag}", command.join(" ")));
        }
        if *whole && unknown.is_empty() && words.len() > command.len() {
            let (code, _, told) = help(words);
            if code != 0 {
                fault(told.trim());
            }
        }
    }
    found
}

#[test]
fn commands_that_the_pages_name_are_there() {
    let pages = pages();
    let all: Vec<Named> = pages.iter().flat_map(|(name, page)| named(name, page)).collect();
    let found = faults(&all);
    assert!(found.is_empty(), "mend the page, or karp:\n{}", found.join("\n"));
    let whole = all.iter().filter(|one| one.whole).count();
    assert!(whole >= 20 && all.len() >= whole + 90, "{whole} of {} are in blocks", all.len());
    for message in MESSAGES {
        let quoted = |page: &String| page.contains(&format!("`{message}`"));
        assert!(pages.iter().any(|(_, page)| quoted(page)), "nobody quotes {message:?}: take it out of the list");
    }
    // Each subcommand has its section, but for the two that are told with the controller.
    let (_, text, _) = karp(&["--help"]);
    let listed = text.split("Commands:\n").nth(1).unwrap().lines().take_while(|line| !line.is_empty());
    let listed = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let subcommands: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(subcommands.len() >= 9, "{text}");
    let (_, tool) = pages.iter().find(|(name, _)| name == "docs/cli.md").unwrap();
    for subcommand in subcommands.into_iter().filter(|name| !["controller", "version", "help"].contains(name)) {
        let heading = format!("## `karp {subcommand}");
        assert!(tool.lines().any(|line| line.starts_with(&heading)), "docs/cli.md has no section `karp {subcommand}`");
    }
}

const PAGE: &str = "\
Ask `karp explain
pod NAME` and `kubectl get pods -o json | karp simulate -f -`.

```console
$ karp orphans --older-than 1h \\
    --region eu-west-1   # karp migrate
karp says no command
```

## `karp migrate --patch`: patches

`--no-import` is an option.

```yaml
karp: none
```

## What else

`--force` is none of karp's, `karp` is the tool, and `karp does not place pods with ...` is a message.

   ```shell
   karp crds > crds.yaml && karp instance-types -r 'a In b,c'
   ```
";

#[test]
fn commands_are_read_out_of_a_page() {
    let found = named("p.md", PAGE);
    let found: Vec<String> = found
        .iter()
        .map(|one| format!("{} {:?}{}", one.place, one.words, if one.whole { " whole" } else { "" }))
        .collect();
    assert_eq!(
        found,
        [
            r#"p.md:1 ["explain", "pod", "NAME"]"#,
            r#"p.md:2 ["simulate", "-f", "-"]"#,
            r#"p.md:10 ["migrate", "--patch"]"#,
            r#"p.md:12 ["migrate", "--no-import"]"#,
            r#"p.md:5 ["orphans", "--older-than", "1h", "--region", "eu-west-1"] whole"#,
            r#"p.md:23 ["crds"] whole"#,
            r#"p.md:23 ["instance-types", "-r", "a In b,c"] whole"#,
        ]
    );
    let alone = named("docs/metrics.md", "By `--metrics-port`.");
    assert!(alone.iter().map(|one| one.words.join(" ")).eq(["controller --metrics-port"]));
    assert!(named("docs/figures.md", "By `--bench x`.").is_empty());
}

#[test]
fn commands_that_are_not_there_are_told_with_their_line() {
    let told = |page: &str| faults(&named("p.md", page)).join("\n");
    for (page, at) in [
        ("\n`karp explian pod`", "p.md:2: karp explian pod: "),
        ("`karp crds all`", "p.md:1: karp crds all: "),
        // The beginning of an option's name is none.
        ("`karp orphans --cluster a`", "p.md:1: karp orphans --cluster a: `karp orphans --help` lists no --cluster"),
        ("```console\nkarp simulate --disrupt -F all.json\n```", "p.md:2: karp simulate --disrupt -F all.json: "),
        // In a block the values count, too.
        ("```console\nkarp orphans --older-than soon\n```", "p.md:2: karp orphans --older-than soon: "),
        ("```console\nkarp explain pod a --context\n```", "p.md:2: karp explain pod a --context: "),
    ] {
        let found = told(page);
        assert!(found.starts_with(at), "{page}: {found:?}");
    }
    for page in ["`karp orphans --older-than DURATION`", "`karp migrate --controller`", "`karp explain`"] {
        assert_eq!(told(page), "", "{page}");
    }
}
