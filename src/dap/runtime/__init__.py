"""Where and how things run: devices, processes, files, progress, batches. Nothing here knows the method."""
