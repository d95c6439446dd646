"""The problems that users of operators for inference engines reported in public, as they were collected before ours was
built: docs/known-problems.md answers each of them, and test_known_problems.py sees to it that none gets lost.

One problem a line, by group; where several people reported the same one, with commas.
"""

COLLECTED = {
    "sizing": """
        kaito-project/kaito#2132
        kaito-project/kaito#2139
        alvarobartt/hf-mem#60, alvarobartt/hf-mem#70
        jundot/omlx#2725
        kubeai-project/kubeai#499
        kserve/kserve#2260
        modelplaneai/modelplane#32
        defilantech/LLMKube#482
    """,
    "rollout and upgrade": """
        defilantech/LLMKube#192
        ai-runway/airunway#400
        runestack/rune#250
        kubernetes-sigs/lws#567
        kubernetes-sigs/lws#717
        kubernetes-sigs/kueue#8769
        kserve/kserve#5452
        kserve/kserve#5684
        kserve/kserve#5085
        kubeai-project/kubeai#219
        defilantech/LLMKube#1225, defilantech/LLMKube#1232
    """,
    "probes and start": """
        kserve/kserve#5062
        vllm-project/production-stack#688, vllm-project/aibrix#1054, vllm-project/aibrix#1013, llm-d/llm-d-benchmark#83
        vllm-project/vllm#15313
        kaito-project/kaito#2325
        superlinked/sie#293
        kserve/kserve#1247
    """,
    "scaling": """
        kubeai-project/kubeai#67
        kubeai-project/kubeai#106, kubeai-project/kubeai#107
        kubeai-project/kubeai#383
        kubeai-project/kubeai#229
        kubeai-project/kubeai#193
        kubeai-project/kubeai#9
        llm-d/llm-d-autoscaling#549, inference-sim/inference-sim#1109, vllm-project/aibrix#2671
        ai-dynamo/dynamo#14251
        ai-dynamo/dynamo#12430
        ai-dynamo/dynamo#9294
        llm-d/llm-d-autoscaling#662
        vllm-project/aibrix#1032
        vllm-project/aibrix#1661
        kedacore/keda#3065, kedacore/keda#965, kedacore/keda#6762
        knative/serving#13075, kubernetes/kubernetes#45509, kubernetes/kubernetes#124821, kedacore/keda#6124
        knative/serving#9092
    """,
    "replicas, ownership and GitOps": """
        kserve/kserve#2278, kserve/kserve#2521
        kserve/kserve#3768
        defilantech/LLMKube#484
        defilantech/LLMKube#1881
        ai-dynamo/dynamo#4420
        vfarcic/crossplane-kubernetes#277
        kedacore/keda#5572, ray-project/kuberay#1120, snese/sample-openclaw-multi-tenant-platform#200
        vllm-project/production-stack#981
        vllm-project/aibrix#1151
        kubernetes-sigs/gateway-api-inference-extension#1372, kubernetes-sigs/gateway-api-inference-extension#1278
        NVIDIA/gpu-operator#186
    """,
    "traffic": """
        vllm-project/production-stack#619
        vllm-project/production-stack#601, vllm-project/aibrix#541, vllm-project/router#279
        vllm-project/production-stack#749
        vllm-project/production-stack#448
        vllm-project/router#140
        vllm-project/aibrix#781
        llm-d-incubation/llm-d-fast-model-actuation#629
        kserve/kserve#2882, kserve/kserve#1805, kedacore/http-add-on#432, kedacore/http-add-on#1385
        kubeai-project/kubeai#25, kubernetes-sigs/gateway-api-inference-extension#2117
        volcano-sh/kthena#1019
        ai-dynamo/dynamo#11536, ai-dynamo/grove#676
    """,
    "drain": """
        ai-dynamo/dynamo#13559
        volcano-sh/kthena#1589, volcano-sh/kthena#1778
        gpustack/gpustack#6059, vllm-project/aibrix#2413
        kubernetes-sigs/gateway-api-inference-extension#549, llm-d/llm-d#927, kserve/kserve#5485, kserve/kserve#5496
        defilantech/LLMKube#856
    """,
    "downloads, secrets, disks": """
        ai-dynamo/dynamo#874, NVIDIA/aicr#1116, huggingface/huggingface_hub#3312
        vllm-project/vllm#24541
        kserve/kserve#4400, kserve/kserve#6260
        kserve/kserve#4674
        kaito-project/kaito#931
        GoogleCloudPlatform/kubernetes-engine-samples#1581, defilantech/LLMKube#1452
        kubeai-project/kubeai#286, kserve/kserve#6154
        kubeai-project/kubeai#406
        modelplaneai/modelplane#140
        defilantech/LLMKube#363
        ome-projects/ome#521
    """,
    "nodes, accelerators, tenancy, status": """
        vllm-project/production-stack#276, vllm-project/production-stack#899, vllm-project/vllm#37982
        vllm-project/aibrix#909, kubeai-project/kubeai#204
        Center-for-AI-Innovation/llm-serving#5, defilantech/LLMKube#793, volcano-sh/volcano#5078
        kubernetes/kubernetes#125579, k3s-io/k3s#11530, NVIDIA/k8s-device-plugin#231
        defilantech/LLMKube#660, defilantech/LLMKube#658, aws/karpenter-provider-aws#5786
        kserve/kserve#4574, volcano-sh/kthena#1481, minio/operator#1764, Flagsmith/flagsmith-charts#185
        defilantech/LLMKube#1310, defilantech/LLMKube#1311, defilantech/LLMKube#1313
        defilantech/LLMKube#78, kaito-project/kaito#344, kaito-project/kaito#2203
        kserve/kserve#1859, kserve/kserve#2037
        vllm-project/aibrix#1609
        kserve/kserve#4644
    """,
    "kopf": """
        nolar/kopf#996, nolar/kopf#955, nolar/kopf#1094, nolar/kopf#787
        nolar/kopf#734
        nolar/kopf#635
        zalando-incubator/kopf#75
        nolar/kopf#1294
        nolar/kopf docs on admission
    """,
}
