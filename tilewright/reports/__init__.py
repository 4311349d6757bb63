"""Pages and pictures. Matplotlib reads no file of the working folder (`reports.settings_files`)."""

from tilewright.reports.settings_files import matplotlib_reads_none_here

matplotlib_reads_none_here()
