"""Webhooks: telling other systems by HTTP that a run has ended, or anything else.

Sending needs the extra ``taquba[webhooks]``; `verify`, for receivers, does not.
"""

from taquba.webhooks._deliverer import WebhookDeliverer as WebhookDeliverer
from taquba.webhooks._hook import WebhookHook as WebhookHook
from taquba.webhooks._request import DEFAULT_RETRY as DEFAULT_RETRY
from taquba.webhooks._request import MAX_BODY_SIZE as MAX_BODY_SIZE
from taquba.webhooks._request import MAX_URL_LENGTH as MAX_URL_LENGTH
from taquba.webhooks._request import enqueue_webhook as enqueue_webhook
from taquba.webhooks._signing import Secret as Secret
from taquba.webhooks._signing import Verified as Verified
from taquba.webhooks._signing import sign as sign
from taquba.webhooks._signing import verify as verify

__all__ = [
    "DEFAULT_RETRY",
    "MAX_BODY_SIZE",
    "MAX_URL_LENGTH",
    "Secret",
    "Verified",
    "WebhookDeliverer",
    "WebhookHook",
    "enqueue_webhook",
    "sign",
    "verify",
]
