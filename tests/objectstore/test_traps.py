"""Where each trap of the services and their clients is tested.

The traps were found by experiment, before this layer was written: what a client does by itself,
hides, or spells otherwise, where a program that trusted it would lose data.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {
    "conformance": Path(__file__).parents[2] / "src/taquba/testing/_objectstore_conformance.py",
    "clouds": HERE / "cloud_suite.py",  # on GCS and on Azure
}

TRAPS: dict[str, str] = {
    # -- creating -------------------------------------------------------------------------
    "a refused create is an OSError of s3fs on one server, and FileExistsError on another": (
        "conformance::test_create_refuses_a_taken_key_and_keeps_its_bytes"
        " moto::test_statuses_are_read_whatever_the_exception_is"
    ),
    "HTTP 409 of S3 means 'try again', but obstore reports that the object exists": (
        "s3::test_statuses s3::test_answers_without_a_body obstore::test_statuses"
        " obstore::test_answers_without_a_body"
    ),
    "HTTP 409 of Azure means 'exists', or one of many other things": (
        "azure::test_statuses obstore::test_statuses_of_azure"
    ),
    "gcsfs says 'exists' to every 412": "gcs::test_a_precondition_matters_to_creates_alone",
    "several creators win at once": (
        "conformance::test_exactly_one_of_many_creators_wins_with_small_objects"
        " conformance::test_exactly_one_of_many_creators_wins_with_larger_objects"
        " local::test_of_two_processes_one_wins_each_key"
    ),
    "a store, or a gateway before it, accepts the condition and ignores it": (
        "verify::test_a_store_that_overwrites"
        " moto::test_a_proxy_that_drops_the_condition_makes_the_store_unsafe"
        " clouds::test_a_service_that_ignores_the_condition_is_unsafe"
    ),
    "s3fs drops what botocore does not know, or is misspelt, and overwrites": (
        "s3::test_a_botocore_that_does_not_know_the_condition_makes_the_store_unsafe"
        " s3::test_a_store_that_drops_the_condition_is_unsafe"
    ),
    "fsspec's local and memory filesystems look first and then overwrite": (
        "s3::test_other_filesystems_are_refused"
    ),
    "obstore's filesystem for fsspec ignores the mode": "s3::test_other_filesystems_are_refused",
    "gcsfs's extended class asks for the bucket type, and overwrites in zonal buckets": (
        "gcs::test_the_class_that_asks_for_the_bucket_type_is_refused"
    ),
    "obstore's writes to GCS could be tried on no server": (
        "gcs::test_the_other_driver_is_not_for_this_service obstore::test_google_is_refused"
    ),
    "gcsfs cuts a body at its boundary": (
        "conformance::test_every_byte_comes_back gcs::test_a_body_that_holds_a_boundary"
        " gcs::test_a_boundary_is_never_in_the_data"
    ),
    "large bodies go in parts, without the condition": (
        "conformance::test_large_sizes obstore::test_one_request_each"
        " clouds::test_a_large_body_is_sent_again_whole"
    ),
    # -- lost answers ---------------------------------------------------------------------
    "every client sends a create again whose answer was lost, and then says 'exists'": (
        "s3::test_a_lost_answer_is_success_for_the_creator_and_exists_for_others"
        " s3::test_without_reading_back_the_creator_would_be_told_exists"
        " obstore::test_a_lost_answer_is_success_for_the_creator_and_exists_for_others"
        " obstore::test_a_lost_answer_on_azure"
        " clouds::test_a_lost_answer_is_success_for_the_creator_and_exists_for_others"
        " retry::test_a_resent_create_that_meets_its_own_object_succeeds"
    ),
    "a loser whose answer was lost might take itself for the winner": (
        "s3::test_a_lost_answer_of_a_loser_is_exists"
        " clouds::test_a_lost_answer_of_a_loser_is_exists"
        " retry::test_a_lost_create_of_somebody_else_is_told_apart"
    ),
    "layers of repetition multiply": (
        "obstore::test_no_request_is_sent_again_below_the_retrying_store s3::test_statuses"
    ),
    "a repeated create brings back what was deleted": (
        "verify::test_a_probe_is_created_twice_and_removed"
    ),
    "an answer breaks off, or comes from something else": (
        "s3::test_an_answer_that_is_cut_off s3::test_an_answer_that_makes_no_sense"
        " obstore::test_an_answer_that_is_cut_off obstore::test_an_answer_that_makes_no_sense"
        " clouds::test_an_answer_that_is_cut_off clouds::test_an_answer_that_makes_no_sense"
        " gcs::test_an_upload_that_was_answered_by_something_else"
    ),
    # -- reading and listing --------------------------------------------------------------
    "s3fs asks twice for one object": (
        "s3::test_one_request_each obstore::test_one_request_each clouds::test_one_request_each"
    ),
    "an empty range is an error here, the whole object there; 416 is no error": (
        "conformance::test_ranges moto::test_statuses_are_read_whatever_the_exception_is"
        " gcs::test_a_server_that_ignores_ranges"
    ),
    "listings start after the offset, at it, or at the beginning": (
        "conformance::test_list_is_ascending_and_starts_after clouds::test_listings_come_in_pages"
    ),
    "listings come in pages": (
        "conformance::test_a_listing_of_many s3::test_deletes_go_in_batches_and_listings_in_pages"
        " s3::test_a_listing_resumes clouds::test_a_listing_resumes"
    ),
    "obstore lists whole folders only": (
        "obstore::test_listing_part_of_a_segment_does_not_read_the_whole_folder"
    ),
    "obstore cannot list some names": "obstore::test_a_name_that_obstore_cannot_hold_is_an_error",
    "consoles and other tools leave objects for folders": (
        "s3::test_objects_that_are_no_keys_are_left_out"
        " obstore::test_objects_that_are_no_keys_are_left_out"
        " azure::test_folders_of_a_hierarchical_namespace_are_left_out"
    ),
    "caches show old listings and sizes": "s3::test_what_another_client_did_is_seen_at_once",
    "an absent bucket looks like an absent object": (
        "s3::test_a_bucket_that_vanishes_is_no_missing_object"
        " obstore::test_a_bucket_that_vanishes_is_no_missing_object"
        " obstore::test_a_container_that_vanishes_is_no_missing_object"
        " gcs::test_a_bucket_that_vanishes_is_no_missing_object"
        " azure::test_a_bucket_that_vanishes_is_no_missing_object"
    ),
    # -- deleting -------------------------------------------------------------------------
    "a batch of deletes succeeds as a whole, and hides the keys that failed": (
        "s3::test_deletes_that_fail_within_a_success"
        " obstore::test_deletes_that_fail_within_a_success"
        " clouds::test_a_delete_that_fails_among_others"
    ),
    "deleting what is absent is an error with some": (
        "conformance::test_delete obstore::test_deleting_on_azure"
    ),
    # -- keys -----------------------------------------------------------------------------
    "two names for one place: a key that is another's folder": (
        "s3::test_a_key_that_was_the_folder_of_another"
        " retry::test_exists_and_yet_absent_is_repeated"
    ),
    "names are rewritten": "conformance::test_bad_keys_are_refused conformance::test_unusual_keys",
    # -- connections ----------------------------------------------------------------------
    "ten connections by default": (
        "s3::test_many_requests_are_under_way_at_once"
        " obstore::test_many_requests_are_under_way_at_once"
    ),
    "sessions that nobody closed, and closed ones that open another": (
        "s3::test_closing_leaves_no_session s3::test_a_closed_driver_opens_no_session"
        " s3::test_closing_before_the_session_is_there clouds::test_closing_leaves_no_session"
        " clouds::test_a_closed_driver_opens_no_session"
        " azure::test_nothing_is_said_at_the_end_of_the_process"
    ),
    "a large body makes aiohttp warn, which is an error under -W error": (
        "conformance::test_large_sizes"
    ),
    "local folders: no exclusive create, half objects, no fsync": (
        "local::test_every_write_is_synced_before_it_is_told"
        " local::test_a_killed_writer_leaves_whole_objects_only"
        " local::test_a_refused_create_makes_what_is_there_durable"
    ),
}


def source(name: str) -> Path:
    return FILES.get(name, HERE / f"test_{name}.py")


@pytest.mark.parametrize("trap", TRAPS, ids=range(len(TRAPS)))
def test_it_has_a_test(trap: str) -> None:
    tests = [test.split("::") for test in TRAPS[trap].split()]
    assert tests
    for name, test in tests:
        text = source(name).read_text(encoding="utf-8")
        assert re.search(rf"def {test}\(", text), f"{trap}: no {test} in {source(name).name}"
