"""Published runs of real engines beside simulated ones, and the error bars they give."""
