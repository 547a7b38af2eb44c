"""What a manifest says of each of several drafters."""

from collections.abc import Mapping
from typing import Any

from eagle_aot.artifact import DrafterRecord
from eagle_aot.export.lengths import drafts_of_a_round
from eagle_aot.export.loading.load import LoadedPair


def drafter_records(
    loaded: LoadedPair, chain_len: int | None, self_tests: Mapping[str, dict[str, Any] | None]
) -> list[DrafterRecord] | None:
    """In their order, which is that of their features in what the target's methods return; None of
    one alone. `chain_len` is what the export was asked for, and what self-tests found is by the
    drafters' names."""
    drafts = loaded.pair.drafts
    if len(drafts) == 1:
        return None
    records, first = [], 0
    for name, draft in drafts.items():
        records.append(
            DrafterRecord(
                name=name,
                kind=draft.kind,
                draft=loaded.source.provenance.drafts[name],
                first_feature=first,
                features=draft.hidden_size,
                chain_len=drafts_of_a_round(chain_len, draft.default_chain_len),
                facts=loaded.readings[name],
                self_test=self_tests[name],
            )
        )
        first += draft.hidden_size
    return records
