//! Each resource of the schema has its acceptance tests under real OpenTofu (`provider/tests`): walked, so that none is forgotten of a new
//! resource.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tfplugin::Attribute;
use tfplugin::schema::{Kind, Mode};

/// What a test tells of which resources: it comes and goes (`life`), is made again when others deleted it (`vanishes`), is put right when they
/// edited it (`heals`), changes in place (`updates`), gives way to another (`replaces`), takes over what exists (`adopts`), is imported without a
/// change (`import`), by its identity, too (`identity`), its tags change (`tags`), a state of an older version is taken (`upgrade`), and whatever
/// is made of it when the provider's process dies is not lost (`killed`), nor when Ctrl-C is pressed in the middle of a call (`stopped`); it takes
/// over what other providers kept (`moved`), ends at its limits (`timeouts`), is planned before its inputs are known (`unknown`), and sets every
/// attribute there is (`full`).
const TOLD: &str = "
life      aws_resources/life         all_resources_come_from_nothing_change_and_go                access_entry controller_role discovery_tags
life      aws_resources/life         all_resources_come_from_nothing_change_and_go                fargate_pod_execution_role fargate_profile instance_profile
life      aws_resources/life         all_resources_come_from_nothing_change_and_go                interruption_queue node_role oidc_provider
life      aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
life      aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
life      aws_resources/teardown     nothing_is_left_although_no_controller_runs                  teardown
life      kubernetes_resources/main  all_of_it_comes_in_one_apply_and_goes_in_one_destroy         controller crds node_class node_pool
life      kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
life      kubernetes_resources/entries an_entry_of_aws_auth_leaves_those_of_others                aws_auth_entry
vanishes  aws_resources/holes        each_resource_comes_back_and_gives_way                       access_entry controller_role discovery_tags
vanishes  aws_resources/holes        each_resource_comes_back_and_gives_way                       fargate_pod_execution_role fargate_profile instance_profile
vanishes  aws_resources/holes        each_resource_comes_back_and_gives_way                       interruption_queue node_role
vanishes  aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
vanishes  aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
vanishes  aws_resources/vanished     an_identity_provider_that_somebody_deleted_comes_back        oidc_provider
vanishes  kubernetes_resources/vanished what_was_deleted_is_made_again                            controller node_class node_pool
vanishes  kubernetes_resources/vanished definitions_that_somebody_deleted_come_back_and_are_imported crds
vanishes  kubernetes_resources/vanished an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back aws_auth_entry
vanishes  kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way access_entry controller_role discovery_tags
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way fargate_pod_execution_role fargate_profile
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way instance_profile oidc_provider
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way pod_identity_association
heals     aws_resources/life         drift_is_seen_and_healed_and_foreign_things_stay             interruption_queue node_role
heals     aws_resources/queue        each_part_that_others_edit_shows_by_itself_and_heals          interruption_queue
heals     aws_resources/account      a_role_is_given_to_other_pods_and_stays_the_same              controller_role
heals     aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
heals     aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
heals     kubernetes_resources/main  a_change_of_others_shows_and_their_fields_are_not_taken      node_pool
heals     kubernetes_resources/controller where_it_runs_comes_changes_heals_and_goes              controller
heals     kubernetes_resources/crds  an_edit_by_hand_shows_and_is_put_right_when_asked            crds
heals     kubernetes_resources/edited what_others_edit_heals_what_changes_stays_and_another_name_gives_way node_class node_overlay
heals     kubernetes_resources/vanished an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back aws_auth_entry
updates   aws_resources/life         all_resources_come_from_nothing_change_and_go                access_entry controller_role fargate_pod_execution_role
updates   aws_resources/life         all_resources_come_from_nothing_change_and_go                fargate_profile instance_profile interruption_queue
updates   aws_resources/life         all_resources_come_from_nothing_change_and_go                node_role oidc_provider
updates   aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way discovery_tags instance_profile
updates   aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
updates   aws_resources/account      a_role_is_given_to_other_pods_and_stays_the_same              controller_role
updates   aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
updates   aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
updates   aws_resources/queue        statements_of_the_user_come_change_heal_and_go               interruption_queue
updates   aws_resources/vanished     an_identity_provider_that_somebody_deleted_comes_back        oidc_provider
updates   aws_resources/vanished     a_teardown_changes_in_place_and_gives_way_for_another_cluster teardown
updates   kubernetes_resources/edited what_others_edit_heals_what_changes_stays_and_another_name_gives_way node_class node_overlay
updates   kubernetes_resources/edited a_pool_is_planned_before_all_of_it_is_known                 node_pool
updates   kubernetes_resources/main  a_change_of_others_shows_and_their_fields_are_not_taken      node_pool
updates   kubernetes_resources/controller one_that_does_not_start_is_told_of_and_stays            controller
updates   kubernetes_resources/controller where_it_runs_comes_changes_heals_and_goes              controller
updates   kubernetes_resources/crds  definitions_stay_while_objects_live                          crds
updates   kubernetes_resources/entries settings_of_the_kubelet_that_have_no_attribute_are_kept_and_imported node_class
updates   kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
updates   kubernetes_resources/entries an_entry_of_aws_auth_leaves_those_of_others                aws_auth_entry
replaces  aws_resources/holes        each_resource_comes_back_and_gives_way                       access_entry controller_role discovery_tags
replaces  aws_resources/holes        each_resource_comes_back_and_gives_way                       fargate_pod_execution_role fargate_profile instance_profile
replaces  aws_resources/holes        each_resource_comes_back_and_gives_way                       interruption_queue node_role
replaces  aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way controller_policy oidc_provider
replaces  aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way pod_identity_association
replaces  aws_resources/edited       a_teardown_gives_way_for_another_cluster                     teardown
replaces  aws_resources/entered      an_entry_is_of_a_role_that_the_same_apply_makes              aws_auth_entry node_role
replaces  kubernetes_resources/edited what_others_edit_heals_what_changes_stays_and_another_name_gives_way node_class node_overlay
replaces  kubernetes_resources/edited a_controller_moves_to_another_namespace_whichever_goes_first controller
replaces  kubernetes_resources/vanished what_was_deleted_is_made_again                            node_pool
adopts    aws_resources/adopted      what_exists_is_taken_over_where_the_block_says_so            access_entry aws_auth_entry controller_policy
adopts    aws_resources/adopted      what_exists_is_taken_over_where_the_block_says_so            controller_role fargate_pod_execution_role fargate_profile
adopts    aws_resources/adopted      what_exists_is_taken_over_where_the_block_says_so            instance_profile interruption_queue node_class node_overlay
adopts    aws_resources/adopted      what_exists_is_taken_over_where_the_block_says_so            node_pool node_role oidc_provider pod_identity_association
adopts    kubernetes_resources/crds  what_helm_keeps_is_taken_over_when_asked                     crds
import    aws_resources/holes        each_resource_is_imported_without_a_change                   access_entry controller_role discovery_tags
import    aws_resources/holes        each_resource_is_imported_without_a_change                   fargate_pod_execution_role fargate_profile instance_profile
import    aws_resources/holes        each_resource_is_imported_without_a_change                   interruption_queue node_role oidc_provider teardown
import    aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
import    aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
import    kubernetes_resources/main  a_pool_made_elsewhere_is_imported_without_a_difference       node_pool
import    kubernetes_resources/controller one_that_is_in_no_state_is_imported                     controller
import    kubernetes_resources/entries settings_of_the_kubelet_that_have_no_attribute_are_kept_and_imported node_class
import    kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
import    kubernetes_resources/vanished definitions_that_somebody_deleted_come_back_and_are_imported crds
import    kubernetes_resources/vanished an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back aws_auth_entry
identity  aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     access_entry controller_policy controller_role
identity  aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     fargate_pod_execution_role fargate_profile
identity  aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     instance_profile interruption_queue node_role oidc_provider
identity  aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     pod_identity_association
identity  aws_resources/moved        imports_by_identity_end_on_an_empty_plan                     access_entry node_role
identity  aws_resources/region       a_queue_lives_in_a_region_of_its_own                         interruption_queue
identity  kubernetes_resources/controller one_that_is_in_no_state_is_imported                     controller
identity  kubernetes_resources/full  what_sets_every_attribute_is_applied_and_read_back_whole     node_class node_overlay node_pool
tags      aws_resources/life         all_resources_come_from_nothing_change_and_go                access_entry controller_role
tags      aws_resources/life         all_resources_come_from_nothing_change_and_go                fargate_pod_execution_role fargate_profile instance_profile
tags      aws_resources/life         all_resources_come_from_nothing_change_and_go                interruption_queue node_role oidc_provider
tags      aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
life      aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
vanishes  aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
import    aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
tags      aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  access_entry controller_role discovery_tags controller_policy
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  fargate_pod_execution_role fargate_profile instance_profile
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  interruption_queue node_role oidc_provider
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  pod_identity_association spot_service_linked_role teardown
upgrade   kubernetes_resources/upgraded a_state_of_an_older_version_needs_no_change               aws_auth_entry controller crds node_class node_overlay node_pool
killed    aws_resources/teardown     a_sweep_whose_provider_is_killed_is_ended_by_the_next_destroy teardown
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      access_entry controller_policy controller_role discovery_tags
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      fargate_pod_execution_role fargate_profile instance_profile
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      interruption_queue node_role oidc_provider
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      pod_identity_association spot_service_linked_role
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      aws_auth_entry controller crds node_class node_overlay node_pool
stopped   aws_resources/stopped      what_is_made_without_a_wait_is_kept_too                       access_entry controller_policy controller_role
stopped   aws_resources/stopped      what_is_made_without_a_wait_is_kept_too                       discovery_tags instance_profile oidc_provider
stopped   aws_resources/stopped      what_is_made_without_a_wait_is_kept_too                       pod_identity_association spot_service_linked_role
stopped   aws_resources/stopped      what_a_call_in_flight_makes_is_kept                           fargate_pod_execution_role node_role
stopped   aws_resources/stopped      an_apply_that_is_interrupted_ends_soon_and_the_next_one_completes_it fargate_profile interruption_queue
stopped   aws_resources/interrupted  a_change_and_a_destroy_that_are_interrupted_are_completed_by_the_next_run access_entry controller_policy controller_role
stopped   aws_resources/interrupted  a_change_and_a_destroy_that_are_interrupted_are_completed_by_the_next_run discovery_tags fargate_pod_execution_role instance_profile
stopped   aws_resources/interrupted  a_change_and_a_destroy_that_are_interrupted_are_completed_by_the_next_run interruption_queue node_role oidc_provider pod_identity_association
stopped   kubernetes_resources/stopped what_a_call_in_flight_makes_is_kept                         aws_auth_entry controller node_class node_overlay node_pool
stopped   kubernetes_resources/stopped the_crds                                                    crds
stopped   kubernetes_resources/stopped a_teardown                                                  teardown
moved     aws_resources/moved        what_hashicorp_aws_kept_moves_in_and_stays_the_same_object    access_entry controller_role discovery_tags
moved     aws_resources/moved        what_hashicorp_aws_kept_moves_in_and_stays_the_same_object    fargate_pod_execution_role fargate_profile instance_profile
moved     aws_resources/moved        what_hashicorp_aws_kept_moves_in_and_stays_the_same_object    interruption_queue node_role oidc_provider
moved     aws_resources/moved        what_hashicorp_aws_kept_moves_in_and_stays_the_same_object    pod_identity_association spot_service_linked_role
moved     kubernetes_resources/moved objects_that_other_providers_kept_move_in_without_a_difference node_class node_overlay node_pool
timeouts  aws_resources/late         what_is_not_made_or_seen_in_time_ends_at_its_limit            controller_policy controller_role discovery_tags
timeouts  aws_resources/late         what_is_not_made_or_seen_in_time_ends_at_its_limit            fargate_pod_execution_role instance_profile node_role
timeouts  aws_resources/late         what_is_not_made_or_seen_in_time_ends_at_its_limit            pod_identity_association spot_service_linked_role
timeouts  aws_resources/late         what_changes_or_goes_too_slowly_ends_at_its_limit             access_entry fargate_profile oidc_provider
timeouts  aws_resources/late         what_changes_or_goes_too_slowly_ends_at_its_limit             pod_identity_association
timeouts  aws_resources/late         a_fargate_profile_that_takes_longer_is_in_state               fargate_profile
timeouts  aws_resources/late         what_is_made_and_not_answered_in_time_is_gone_on_with         oidc_provider
timeouts  aws_resources/late         a_queue_whose_name_or_rules_take_longer_ends_at_its_limit     interruption_queue
timeouts  aws_resources/life         a_wait_ends_at_the_limit_that_the_user_set                    access_entry
timeouts  kubernetes_resources/late  an_entry_of_aws_auth_ends_in_time                             aws_auth_entry
timeouts  kubernetes_resources/late  a_node_class_ends_in_time                                     node_class
timeouts  kubernetes_resources/late  a_node_overlay_ends_in_time                                   node_overlay
timeouts  kubernetes_resources/late  a_node_pool_ends_in_time                                      node_pool
timeouts  kubernetes_resources/controller one_that_does_not_start_is_told_of_and_stays             controller
timeouts  kubernetes_resources/crds  definitions_stay_while_objects_live                           crds
timeouts  kubernetes_resources/stopped a_teardown                                                  teardown
unknown   aws_resources/life         all_resources_come_from_nothing_change_and_go                access_entry controller_role discovery_tags
unknown   aws_resources/life         all_resources_come_from_nothing_change_and_go                fargate_pod_execution_role fargate_profile instance_profile
unknown   aws_resources/life         all_resources_come_from_nothing_change_and_go                interruption_queue node_role oidc_provider
unknown   aws_resources/life         all_resources_come_from_nothing_change_and_go                spot_service_linked_role teardown
unknown   aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way controller_policy pod_identity_association
unknown   aws_resources/holes        each_resource_comes_back_and_gives_way                       discovery_tags fargate_profile
unknown   aws_resources/entered      an_entry_is_of_a_role_that_the_same_apply_makes              aws_auth_entry
unknown   kubernetes_resources/main  all_of_it_comes_in_one_apply_and_goes_in_one_destroy         controller crds node_class node_overlay
unknown   kubernetes_resources/edited a_pool_is_planned_before_all_of_it_is_known                 node_pool
full      aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     access_entry controller_policy controller_role
full      aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     discovery_tags fargate_pod_execution_role fargate_profile
full      aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     instance_profile interruption_queue node_role oidc_provider
full      aws_resources/full         what_sets_every_attribute_is_applied_and_read_back_whole     pod_identity_association spot_service_linked_role teardown
full      kubernetes_resources/outfitted one_of_which_everything_is_said_is_applied_and_read_back    controller
full      kubernetes_resources/full  what_sets_every_attribute_is_applied_and_read_back_whole     aws_auth_entry crds node_class node_overlay node_pool
";
/// What a resource need not show, and why.
const EXEMPT: [(&str, &str, &str); 10] = [
    ("vanishes", "teardown", "it stands for nothing that others could delete"),
    ("heals", "teardown", "it stands for nothing that others could edit"),
    ("heals", "spot_service_linked_role", "karp keeps nothing of it that AWS lets anybody edit"),
    ("replaces", "crds", "they are one of their kind, and all of it changes in place"),
    ("replaces", "spot_service_linked_role", "an account has one, and AWS names it"),
    ("moved", "aws_auth_entry", "hashicorp/kubernetes keeps the whole ConfigMap, and an entry is a part of it"),
    ("moved", "controller", "Helm's release is many objects: an import takes over what is deployed"),
    ("moved", "controller_policy", "the parts are named by karp, and IAM renames no policy"),
    ("moved", "crds", "it is one of its kind: `adopt` takes over what Helm or kubectl installed"),
    ("moved", "teardown", "it stands for nothing that another provider could have kept"),
];
/// What each resource shows, unless it is exempt.
const STORIES: [&str; 13] = [
    "life", "vanishes", "heals", "updates", "replaces", "import", "upgrade", "killed", "stopped", "moved", "timeouts",
    "unknown", "full",
];
/// What those show, too, that have an attribute.
const STORIES_OF: [(&str, &str); 2] = [("adopt", "adopts"), ("tags_all", "tags")];
/// What those show, too, that have an identity.
const OF_IDENTITY: &str = "identity";
/// Configurations that several tests share: where they are, and by which words a test uses them.
const SHARED: [(&str, &str); 6] = [
    ("aws_resources/killed.rs", "{OBJECTS}"),
    ("aws_resources/life.rs", ".everything("),
    ("aws_resources/stopped.rs", "{RESOURCES}"),
    ("kubernetes_resources/main.rs", "CRDS}"),
    ("kubernetes_resources/main.rs", "class("),
    ("kubernetes_resources/main.rs", "pool("),
];
/// Attributes that a `full` configuration leaves out, and the file whose tests set them, of each resource that has them: a name excludes a prefix,
/// and a region of its own is tested with another one.
const ASIDE: [(&str, &str); 2] = [("name_prefix", "aws_resources/holes"), ("region", "aws_resources/region")];

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the table, each row of it true: there is such a test, and its configuration speaks of the resource.
fn told() -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for row in TOLD.lines().filter(|line| !line.is_empty()) {
        let mut cells = row.split_whitespace();
        let [story, file, test] = [(); 3].map(|()| cells.next().unwrap());
        let text = source(&format!("{file}.rs"));
        let begin = text.find(&format!("fn {test}()")).unwrap_or_else(|| panic!("{file}.rs has no test {test}"));
        let before = text[..begin].lines().rev().take(2).collect::<String>();
        assert!(before.contains("test]"), "{file}.rs: {test} is no test");
        for kind in cells {
            let named = format!("\"karp_{kind}");
            let is_shared = SHARED.iter().any(|(home, call)| text.contains(call) && source(home).contains(&named));
            assert!(text.contains(&named) || is_shared, "{file}.rs does not speak of karp_{kind}");
            assert!(story != OF_IDENTITY || text.contains("identity = {"), "{file}.rs imports nothing by its identity");
            all.insert((story.to_owned(), kind.to_owned()));
        }
    }
    all
}

/// The attributes that a user may set, nested ones by their own names.
fn settable(attributes: &BTreeMap<String, Attribute>, names: &mut BTreeSet<String>) {
    for (name, attribute) in attributes.iter().filter(|(_, attribute)| attribute.mode != Mode::Computed) {
        names.insert(name.clone());
        if let Kind::Nested(_, inner) = &attribute.kind {
            settable(inner, names);
        }
    }
}

/// Whatever is set in the blocks of a resource in a file of HCL.
fn set_in(text: &str, kind: &str) -> BTreeSet<String> {
    let begin = format!("resource \"karp_{kind}\" ");
    let blocks = text.split(&begin).skip(1).filter_map(|rest| rest.split_once("\n}\n"));
    let names = blocks.flat_map(|(block, _)| {
        let words = block.split('=').filter_map(|before| before.split_whitespace().next_back());
        words.map(str::to_owned).collect::<Vec<_>>()
    });
    names.collect()
}

/// Says whether an attribute of a resource is set elsewhere.
fn is_aside(name: &str, kind: &str) -> bool {
    let Some((_, file)) = ASIDE.iter().find(|(aside, _)| *aside == name) else { return false };
    let text = source(&format!("{file}.rs"));
    text.contains(&format!("\"karp_{kind}")) && text.contains(&format!("  {name} "))
}

#[test]
fn what_is_full_sets_every_attribute() {
    let rows = TOLD.lines().filter(|row| row.starts_with("full"));
    let files: BTreeSet<&str> = rows.filter_map(|row| row.split_whitespace().nth(1)).collect();
    let texts: String = files.iter().map(|file| source(&format!("{file}.rs"))).collect();
    let exempt = |kind: &str| EXEMPT.iter().any(|(story, of, _)| (*story, *of) == ("full", kind));
    let mut missing = Vec::new();
    for resource in crate::resources::all(&Arc::default()) {
        let kind = resource.type_name().trim_start_matches("karp_");
        let mut names = BTreeSet::from(["create", "read", "update", "delete"].map(str::to_owned));
        settable(&resource.schema().attributes, &mut names);
        let set = set_in(&texts, kind);
        let left = names.into_iter().filter(|name| !set.contains(name) && !is_aside(name, kind));
        missing.extend(left.filter(|_| !exempt(kind)).map(|name| format!("karp_{kind}: {name}")));
    }
    assert!(missing.is_empty(), "set them in the full configuration: {missing:#?}");
}

/// What is excused from moving has no source to move from, and whatever has one is not excused.
#[test]
fn what_moves_nowhere_is_what_the_table_says() {
    let mut moves: BTreeSet<&str> = super::moved::sources().into_iter().map(|(_, target, _)| target).collect();
    moves.insert("karp_spot_service_linked_role");
    for resource in crate::resources::all(&Arc::default()) {
        let kind = resource.type_name();
        let exempt = EXEMPT.iter().any(|(story, of, _)| (*story, *of) == ("moved", kind.trim_start_matches("karp_")));
        assert_ne!(moves.contains(kind), exempt, "{kind}");
    }
}

#[test]
fn each_resource_is_tested_in_all_that_it_must_bear() {
    let mut told = told();
    let mut missing = Vec::new();
    for resource in crate::resources::all(&Arc::default()) {
        let kind = resource.type_name().trim_start_matches("karp_").to_owned();
        let schema = resource.schema();
        let further = STORIES_OF.into_iter().filter(|(attribute, _)| schema.attributes.contains_key(*attribute));
        let of_identity = schema.identity.is_some().then_some(OF_IDENTITY);
        let stories = STORIES.into_iter().chain(further.map(|(_, story)| story)).chain(of_identity);
        for story in stories {
            let exempt = EXEMPT.iter().any(|(exempt, of, _)| *exempt == story && *of == kind);
            let is_told = told.remove(&(story.to_owned(), kind.clone()));
            assert!(!(exempt && is_told), "{kind} shows {story} by now: take the exemption away");
            if !exempt && !is_told {
                missing.push(format!("karp_{kind}: {story}"));
            }
        }
    }
    assert!(missing.is_empty(), "write tests, and name them in the table: {missing:#?}");
    assert!(told.is_empty(), "there is no such resource, or it has nothing to show of that: {told:?}");
}
