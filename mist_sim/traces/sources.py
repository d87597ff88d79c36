"""Public traces by name: URL, reader and checksum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_AZURE_WEEK = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"
_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces"
_BURSTGPT = "https://github.com/HPMLL/BurstGPT/releases/download/v1.1"


@dataclass(frozen=True)
class TraceSource:
    """A public trace.

    url: of the file. form: name of its reader. about: what it is, and its licence. sha256: of the
    file that this project has read; empty: not read, so unknown.
    """

    url: str
    form: str
    about: str
    sha256: str = ""

    @property
    def file_name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]


SOURCES: Mapping[str, TraceSource] = {
    "azure-code-2023": TraceSource(
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
        "azure",
        "an hour of a service for code, 2023; CC-BY 4.0",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
    ),
    "azure-conv-2023": TraceSource(
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        "azure",
        "an hour of a service for chats, 2023; CC-BY 4.0",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    ),
    "azure-code-2024": TraceSource(
        f"{_AZURE_WEEK}/AzureLLMInferenceTrace_code_1week.csv",
        "azure",
        "a week of a service for code, 2024; CC-BY 4.0",
    ),
    "azure-multimodal-2025": TraceSource(
        f"{_AZURE}/AzureLMMInferenceTrace_multimodal.csv.gz",
        "azure",
        "a week of a service with images, 2024; CC-BY 4.0",
    ),
    "mooncake-conversation": TraceSource(
        f"{_MOONCAKE}/conversation_trace.jsonl", "mooncake", "chats, FAST'25 release; Apache-2.0"
    ),
    "mooncake-synthetic": TraceSource(
        f"{_MOONCAKE}/synthetic_trace.jsonl",
        "mooncake",
        "a mix of public data sets, FAST'25 release; Apache-2.0",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
    ),
    "burstgpt": TraceSource(
        f"{_BURSTGPT}/BurstGPT_without_fails_1.csv",
        "burstgpt",
        "two months of a campus, without failures, release 1.1",
    ),
}
"""Source: the pages of the Azure Public Dataset, of Mooncake's FAST'25 release, of BurstGPT."""
