"""The contract between the export and the runner: methods, constants, files and the manifest.

An artifact is a directory that holds everything needed to run: `model.pte`, `model.ptd` where the
weights lie outside the program, `manifest.json`, and the tokenizer's files. Both sides import this
package and neither imports the other.
"""

from eagle_aot.artifact.files import (
    ARTIFACT_FILES,
    DRAFT_IDS,
    MANIFEST,
    PROCESSOR_FILES,
    PROGRAM,
    TOKENIZER_FILES,
    WEIGHTS,
    FileRecord,
    file_record,
    file_records,
    tokenizer_files,
)
from eagle_aot.artifact.manifest import (
    SCHEMA_VERSION,
    CacheBytes,
    CheckpointIdentity,
    Device,
    ImageInputs,
    Manifest,
    RowRange,
    Stage,
    TargetIdentity,
)
from eagle_aot.artifact.methods import (
    CANDIDATES,
    COPY_ROWS,
    COPY_STATES,
    DFLASH,
    DFLASH2,
    DFLASH2_BLOCK,
    DFLASH2_SCORES,
    DFLASH_BLOCK,
    DFLASH_BLOCKS,
    DFLASH_CONTEXT,
    DRAFT_DECODE,
    DRAFT_PREFILL,
    DRAFTERS,
    DSPARK,
    DSPARK_BIAS,
    DSPARK_BLOCK,
    EAGLE3,
    GEMMA4_ASSISTANT,
    LOSSLESS,
    MASK,
    METHODS,
    MTP,
    MTP_DECODE,
    NGRAM,
    P_EAGLE,
    PEAGLE_DECODE,
    PREFILL,
    TABLE_SCREEN,
    TARGET_METHODS,
    TARGET_VERIFY,
    Constants,
    encode_image,
    methods_of,
)

__all__ = [
    "ARTIFACT_FILES", "CANDIDATES", "COPY_ROWS", "COPY_STATES", "DFLASH", "DFLASH2",
    "DFLASH2_BLOCK", "DFLASH2_SCORES", "DFLASH_BLOCK", "DFLASH_BLOCKS", "DFLASH_CONTEXT",
    "DRAFTERS", "DRAFT_DECODE", "DRAFT_IDS", "DRAFT_PREFILL", "DSPARK", "DSPARK_BIAS",
    "DSPARK_BLOCK", "EAGLE3", "GEMMA4_ASSISTANT", "LOSSLESS", "MANIFEST", "MASK", "METHODS", "MTP",
    "MTP_DECODE", "NGRAM", "PEAGLE_DECODE", "PREFILL", "PROCESSOR_FILES", "PROGRAM", "P_EAGLE",
    "SCHEMA_VERSION", "TABLE_SCREEN", "TARGET_METHODS", "TARGET_VERIFY", "TOKENIZER_FILES",
    "WEIGHTS", "CacheBytes",
    "CheckpointIdentity", "Constants", "Device", "FileRecord", "ImageInputs", "Manifest",
    "RowRange", "Stage", "TargetIdentity", "encode_image", "file_record", "file_records",
    "methods_of", "tokenizer_files",
]  # fmt: skip
