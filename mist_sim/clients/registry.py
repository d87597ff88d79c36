"""The registry of client types (entry-point group `mist_sim.clients`)."""

from mist_sim.registry import Registry

CLIENTS = Registry(
    "clients",
    later={
        "afd": "mist_sim.clients.afd:AfdClient",
        "kv_retrieval": "mist_sim.clients.retrieval.client:KvRetrievalClient",
        "text": "mist_sim.clients.workers.text:TextClient",
        "image_encoder": "mist_sim.clients.image_encoder:ImageEncoderClient",
        "rag": "mist_sim.clients.rag:RagClient",
    },
)
