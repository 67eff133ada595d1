"""What a user brings: files found, unpacked and decoded, as documents, rows or tokens; see `formats.FORMATS`."""
