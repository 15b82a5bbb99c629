"""What every experiment uses: servers, measured processes, samples."""
