"""What a WebUI runs when it loads this extension; all the code is in the package s4s_webui.

The host has the extension's folder on its path only while this file runs, so all our packages are
imported here; what they import later they find through one another.
"""

import s4s_core  # noqa: F401
import trainer  # noqa: F401
from s4s_webui import register
from s4s_webui.section import Section  # noqa: F401  (the host looks for it here)

register()
