"""The names for writing recipes: data, models, objectives, training, validation and reports.

With `import transduce as td` and `from transduce import experiment as ex`, a recipe needs nothing
else.
"""

from typing import TYPE_CHECKING

from transduce.process import lazily

if TYPE_CHECKING:
    from transduce.config import (
        Common as Common,
        at_least as at_least,
        with_fields as with_fields,
        within as within,
    )
    from transduce.data.config import (
        Augmentation as Augmentation,
        FeatureConfig as FeatureConfig,
        MaskingConfig as MaskingConfig,
        VectorConfig as VectorConfig,
    )
    from transduce.data.corpus import (
        Directions as Directions,
        Files as Files,
        Folder as Folder,
        corpus_folder as corpus_folder,
    )
    from transduce.data.features import FeatureCache as FeatureCache
    from transduce.data.frame_reader import FrameReader as FrameReader
    from transduce.data.language import (
        OneText as OneText,
        Stream as Stream,
        TextFiles as TextFiles,
        encode_text as encode_text,
        read_text as read_text,
    )
    from transduce.data.lines import read_lines as read_lines
    from transduce.data.manifest import Manifests as Manifests
    from transduce.data.parallel_text import (
        ParallelText as ParallelText,
        fingerprint as fingerprint,
    )
    from transduce.data.pronunciations import (
        PronunciationTokenizer as PronunciationTokenizer,
        read_dictionary as read_dictionary,
    )
    from transduce.data.sentencepiece_bpe import (
        Normalization as Normalization,
        SentencePieceTokenizer as SentencePieceTokenizer,
        train_tokenizer_pair as train_tokenizer_pair,
    )
    from transduce.data.shards import Shards as Shards
    from transduce.data.speech_batches import (
        SpeechPairs as SpeechPairs,
        SpeechPairsConfig as SpeechPairsConfig,
        cells as cells,
        recordings_fingerprint as recordings_fingerprint,
    )
    from transduce.data.text_batches import (
        HeldOutWindows as HeldOutWindows,
        MaskedBatches as MaskedBatches,
        MaskedWindows as MaskedWindows,
        TextPairs as TextPairs,
        TokenWindows as TokenWindows,
        mask_id as mask_id,
    )
    from transduce.data.tokenizer_files import (
        TokenizerKind as TokenizerKind,
        train_tokenizer as train_tokenizer,
    )
    from transduce.device import default_device as default_device
    from transduce.experiment.command import main as main
    from transduce.experiment.config import (
        MFCC as MFCC,
        Experiment as Experiment,
        SpeechExperiment as SpeechExperiment,
        TextExperiment as TextExperiment,
        TranslationExperiment as TranslationExperiment,
        ValidateBy as ValidateBy,
        resolved as resolved,
        with_frames as with_frames,
        with_vocabularies as with_vocabularies,
    )
    from transduce.experiment.run import (
        Processor as Processor,
        new_model as new_model,
        token_losses as token_losses,
        train as train,
    )
    from transduce.experiment.start import (
        saved_tokenizers as saved_tokenizers,
        speech_features as speech_features,
        speech_pairs as speech_pairs,
        speech_tokenizer as speech_tokenizer,
    )
    from transduce.experiment.validation import (
        Validator as Validator,
        check_search as check_search,
        held_out_report as held_out_report,
        language_validator as language_validator,
        masked_language_validator as masked_language_validator,
        speech_validator as speech_validator,
        translation_validator as translation_validator,
    )
    from transduce.model.meta import flops_per_token as flops_per_token
    from transduce.model.presets import (
        conformer_small as conformer_small,
        conformer_tiny as conformer_tiny,
        gpt2 as gpt2,
        speech_tiny as speech_tiny,
    )
    from transduce.model.transformer import (
        cross_attention as cross_attention,
        self_attention as self_attention,
    )
    from transduce.report.evaluation import (
        search_report as search_report,
        speech_report as speech_report,
    )
    from transduce.score.measures import MEASURES as MEASURES, Tokenization as Tokenization
    from transduce.score.score import Measure as Measure
    from transduce.score.wer import normalized as normalized
    from transduce.tasks.translate import in_languages as in_languages
    from transduce.train.config import (
        LoRAConfig as LoRAConfig,
        LossConfig as LossConfig,
        OptimConfig as OptimConfig,
        TrainingConfig as TrainingConfig,
    )
    from transduce.train.objectives import (
        CrossEntropy as CrossEntropy,
        Loss as Loss,
        Objective as Objective,
    )
else:
    __getattr__, __dir__ = lazily(__name__, __file__)
