"""What front ends share and no formula needs: folders, processes, jobs, progress, pictures."""
