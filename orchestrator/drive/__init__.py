"""Drive room: what runs inside the job, from the run's slices to its end. The second root."""
