"""What is measured or derived, next to the forecast: report, studies, score, explain."""
