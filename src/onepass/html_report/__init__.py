"""The look of every HTML report: one style sheet, the frame of a page, tables, and charts as inline SVG."""
