"""From timed searches of faiss to the coefficients of a vector index (`mist calibrate rag`)."""
