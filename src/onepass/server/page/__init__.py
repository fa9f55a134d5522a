"""The page at `/`: forms, results and live charts in a browser, as plain JavaScript modules and CSS."""
