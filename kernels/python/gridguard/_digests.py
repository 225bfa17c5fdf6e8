"""The sources of other packages' modules that `replace_attention` was tested with: tests/digests.py writes them."""

DIGESTS: dict[str, dict[str, str]] = {
    "diffusers.models.autoencoders.autoencoder_kl_cosmos.CosmosCausalAttention": {
        "15348c1c1995e5743d65edd4e2dcff33a4e0617aede82e4e2ec8866a4148b94a": "diffusers 0.42.1",
        "2a6dd21143cd4580e23e713dd2747db43c7da22d0ca780b6c6257dfabc1c8e6f": "diffusers 0.34.0",
    },
    "diffusers.models.autoencoders.autoencoder_kl_mochi.MochiChunkedGroupNorm3D": {
        "5d80f2672733e04fd94e20674290a05fdbe6afe6ce51039e52ae7d4027a66425": "diffusers 0.42.1",
    },
    "diffusers.models.autoencoders.autoencoder_kl_mochi.MochiDownBlock3D": {
        "c850c84aabf603525ff8778058437ece1959cbfd025fc5a644fee52485bb88a6": "diffusers 0.42.1",
        "b9f7ec2e22f1f9b8bf5d09cca3177b4bb254934e890aa0be08d99e65fb9a1036": "diffusers 0.34.0",
    },
    "diffusers.models.autoencoders.autoencoder_kl_mochi.MochiResnetBlock3D": {
        "9a0fb0e7d05948025642c0e2095a3cb14177cf49017ba94c84299c12055f92f1": "diffusers 0.42.1",
        "adfe432986b05788574374a72d5b9315e469a97822daba5389a4707cac7bb8fa": "diffusers 0.34.0",
    },
    "tabpfn.architectures.tabpfn_v2.TabPFNBlock": {
        "c202998f5f8101f232686572c0bf3be9b146506baef89edfe28947af2f1adb0d": "tabpfn 9.2.0",
    },
    "tabpfn.architectures.tabpfn_v2_5.TabPFNBlock": {
        "cf10bbc82b15131bb89d1261793790e779bb1145095c8e0b71f81103b450cb03": "tabpfn 9.2.0",
    },
    "tabpfn.architectures.tabpfn_v2_6.TabPFNBlock": {
        "e0a2b413832a21cc4295376d9f12c3b3a45522c7ea869aa437cdc21acd96f9c0": "tabpfn 9.2.0",
    },
    "timm.models.swin_transformer.WindowAttention": {
        "79990198d8287f694fe74703960273e062657fe6c51d16c7f42541078557bc5d": "timm 1.0.31",
    },
    "timm.models.swin_transformer_v2.WindowAttention": {
        "f4b141a47640678819e758d91dfe748f7fb558796506cbd647440d737a72c282": "timm 1.0.31",
    },
    "torchvision.models.swin_transformer.ShiftedWindowAttention": {
        "88a4cb1e2724c7b4af443e8a807add5479079ee27d58dc697893cd0b4d84edab": "torchvision 0.26.0",
    },
    "torchvision.models.swin_transformer.ShiftedWindowAttentionV2": {
        "8784463cabafe97cb63af712f151eade6d9971a5df434b0691c7dec3cbc4f39b": "torchvision 0.26.0",
    },
}
